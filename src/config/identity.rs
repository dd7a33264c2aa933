//! The identity of the agent and its job, for people who read contender keys, and the names of entries in messages.

use slotkeeper_semaphore::printable;

/// The variable of `run --name`.
pub(super) const JOB_NAME: &str = "SLOTKEEPER_NAME";

/// The maximum size of a job's name in bytes.
const MAX_NAME_BYTES: usize = slotkeeper_semaphore::Identity::MAX_TEXT;

/// The maximum size of a name that is made of a command line, so that tables stay narrow.
const MAX_LINE_BYTES: usize = 40;

/// The identity from the environment and from the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The job's name.
    pub name: Option<String>,
    /// The command that the job runs, if its name is another one.
    pub command: Option<String>,
    /// The pod's name.
    pub pod: Option<String>,
    /// The pod's Kubernetes namespace.
    pub namespace: Option<String>,
    /// The machine's or Kubernetes node's name.
    pub node: Option<String>,
}

impl Identity {
    /// Adds a job whose program has this file name. `name` overrides that of the environment.
    pub fn set_program(&mut self, name: Option<&str>, program: &str) {
        let program = printable(program, MAX_NAME_BYTES);
        let name = name.map(str::to_owned).or(self.name.take()).unwrap_or_else(|| program.clone());
        self.command = (program != name).then_some(program);
        self.name = Some(name);
    }

    /// Adds a job that is a line of a shell. The line may contain a secret: a job with a name does not publish it.
    pub fn set_line(&mut self, name: Option<&str>, line: &str) {
        let name = name.map(str::to_owned).or(self.name.take());
        self.name = Some(name.unwrap_or_else(|| printable(line, MAX_LINE_BYTES)));
    }
}

/// A job's name, checked.
///
/// # Errors
///
/// What is wrong with it, and what to do.
pub fn job_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("is empty; write a text".to_owned())
    } else if text.len() > MAX_NAME_BYTES {
        Err(format!("has {} bytes; write at most {MAX_NAME_BYTES}", text.len()))
    } else if text.contains(char::is_control) {
        Err("has control characters; remove them".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// How messages name a semaphore or a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// By its configured name.
    #[default]
    Name,
    /// By its prefix, for `run PREFIX`: the last segment alone may be that of several semaphores.
    Prefix,
}

impl Naming {
    /// The text for an entry with this name, and this prefix or key.
    pub fn of<'a>(self, name: &'a str, key: &'a str) -> &'a str {
        match self {
            Self::Name => name,
            Self::Prefix => key.strip_suffix("/.lock").unwrap_or(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_name_that_it_is_given_or_that_of_its_command() {
        let of =
            |variable: Option<&str>| Identity { name: variable.map(str::to_owned), ..Identity::default() };
        let named = |identity: Identity| (identity.name.unwrap(), identity.command);
        for (flag, variable, name, command) in [
            (None, None, "import", None),
            (None, Some("nightly"), "nightly", Some("import")),
            (Some("weekly"), Some("nightly"), "weekly", Some("import")),
            (Some("import"), None, "import", None),
        ] {
            let mut identity = of(variable);
            identity.set_program(flag, "import");
            assert_eq!(named(identity), (name.to_owned(), command.map(str::to_owned)));
        }
        let line = "mysqldump --all-databases | gzip > /backup/all.gz";
        for (name, expected) in [(None, "mysqldump --all-databases | gzip > /back…"), (Some("dump"), "dump")]
        {
            let mut identity = of(name);
            identity.set_line(None, line);
            assert_eq!(named(identity), (expected.to_owned(), None));
        }
    }

    #[test]
    fn a_name_is_one_short_line() {
        assert_eq!(job_name("nightly import, é").as_deref(), Ok("nightly import, é"));
        assert!(job_name(&"n".repeat(100)).is_ok());
        for (wrong, said) in
            [("", "is empty"), (" ", "is empty"), ("a\nb", "control"), ("\u{1b}[2J", "control")]
        {
            assert!(job_name(wrong).unwrap_err().contains(said), "{wrong:?}");
        }
        assert_eq!(job_name(&"é".repeat(51)).unwrap_err(), "has 102 bytes; write at most 100");
    }

    #[test]
    fn a_prefix_stands_for_its_lock_too() {
        for (key, title) in
            [("service/a/writers", "service/a/writers"), ("service/nightly/.lock", "service/nightly")]
        {
            assert_eq!((Naming::Name.of("w", key), Naming::Prefix.of("w", key)), ("w", title));
        }
    }
}
