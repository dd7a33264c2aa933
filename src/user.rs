//! The name of the operating system's user, for people.

use std::io::{BufRead as _, BufReader};
use std::sync::OnceLock;

/// The name of this process's user: that of the environment, else that of `/etc/passwd`, else the number.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let id = rustix::process::getuid().as_raw();
        let listed = || {
            let lines = BufReader::new(std::fs::File::open("/etc/passwd").ok()?).lines();
            lines.map_while(Result::ok).find_map(|line| name_in(&line, id))
        };
        // A user of a directory service is not in the file, and several persons may share a number.
        let variable = || ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
        variable().filter(|name| !name.is_empty()).or_else(listed).unwrap_or_else(|| id.to_string())
    })
}

/// The name in a line of `/etc/passwd`, if the line is the user's: `name:password:uid:…`.
fn name_in(line: &str, id: u32) -> Option<String> {
    let mut fields = line.split(':');
    let (name, number) = (fields.next()?, fields.nth(1)?);
    (number.parse() == Ok(id) && !name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_number() {
        let line = "batch:x:1002:1003:Batch jobs:/home/batch:/bin/sh";
        assert_eq!(name_in(line, 1002).as_deref(), Some("batch"));
        for other in [line, ":x:1003:", "batch", "", "#batch:x:number:"] {
            assert_eq!(name_in(other, 1003), None);
        }
    }
}
