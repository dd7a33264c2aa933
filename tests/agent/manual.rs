//! Manual pages and completions, by the programs that read them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::BINARY;

/// One of mandoc, zsh and fish.
fn reader(name: &str) -> Command {
    let folder = std::env::var_os("READERS_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/readers/run"), PathBuf::from);
    let program = folder.join(name);
    assert!(program.exists(), "no {} (READERS_DIR): run scripts/readers, which gets it", program.display());
    Command::new(program)
}

/// What it prints, where it ends well.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, errors) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{errors}");
    out
}

fn slotkeeper(words: &[&str]) -> String {
    output(Command::new(BINARY).args(words).env_clear())
}

/// The commands that `--help` tells of.
fn commands() -> BTreeSet<String> {
    let help = slotkeeper(&["--help"]);
    let list = help.split("\nOptions:\n").next().unwrap();
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !matches!(*name, "" | "help")).map(str::to_owned).collect()
}

/// The flags in a text.
fn flags(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--")).collect()
}

#[test]
fn every_command_has_a_page_with_its_flags() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man/man1");
    assert_eq!(slotkeeper(&["man", "--dir", pages.to_str().unwrap()]), "");
    let commands = commands();
    assert!(commands.len() >= 13 && commands.contains("run"), "{commands:?}");
    // Without what says in which font, and how a hyphen is to look.
    let plain =
        |page: &str| page.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace('\\', "");
    let page = |name: &str| plain(&std::fs::read_to_string(pages.join(name)).unwrap());
    for command in &commands {
        let page = page(&format!("slotkeeper-{command}.1"));
        let help = slotkeeper(&[command, "--help"]);
        let missing: Vec<_> = flags(&help).difference(&flags(&page)).copied().collect();
        assert_eq!(missing, [""; 0], "{command}");
        assert!(page.contains("\n.SH \"SEE ALSO\"\n"), "{command}");
    }
    let main = page("slotkeeper.1");
    assert_eq!(main, plain(&slotkeeper(&["man"])));
    for said in ["EXIT STATUS", "ENVIRONMENT", "FILES", "SLOTKEEPER_CONFIG", "slotkeeper-run(1)"] {
        assert!(main.contains(said), "{said}");
    }
    // `--help` ends with the exit codes.
    let (help, run) = (slotkeeper(&["--help"]), slotkeeper(&["run", "--help"]));
    assert!(help.contains("\nExit status:\n  0   Done") && !help.contains("SLOTKEEPER_CONFIG"), "{help}");
    assert!(run.contains("\nExit status:\n") && page("slotkeeper-run.1").contains(".SH \"EXIT STATUS\"\n"));
    // None of a command that is hidden.
    assert_eq!(std::fs::read_dir(&pages).unwrap().count(), commands.len() + 1);
}

#[test]
fn the_pages_are_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    slotkeeper(&["man", "--dir", folder.path().to_str().unwrap()]);
    for page in std::fs::read_dir(folder.path()).unwrap() {
        let lint = reader("mandoc")
            .args(["-T", "lint", "-W", "warning"])
            .arg(page.unwrap().path())
            .output()
            .unwrap();
        let said = String::from_utf8(lint.stdout).unwrap();
        // A page bears no date, so that a build can be repeated; and the library sets one break too many beside a list.
        let known = [
            "missing date, using \"\"",
            "skipping paragraph macro: br before sp",
            "skipping paragraph macro: br after sp",
        ];
        let faults: Vec<_> =
            said.lines().filter(|line| !known.iter().any(|known| line.contains(known))).collect();
        assert_eq!(faults, [""; 0]);
    }
}

/// What bash offers for the words typed so far.
fn bash_offers(script: &Path, words: &[&str]) -> Vec<String> {
    let complete = r#"
        source "$0"
        COMP_WORDS=(slotkeeper "$@")
        COMP_CWORD=$#
        "$(complete -p slotkeeper | sed 's/.*-F \([^ ]*\).*/\1/')" slotkeeper "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["-c", complete]).arg(script).args(words);
    output(&mut bash).lines().map(str::to_owned).collect()
}

#[test]
fn shells_load_the_completions_and_complete() {
    let folder = tempfile::tempdir().unwrap();
    let script = |shell: &str| {
        let path = folder.path().join(shell);
        std::fs::write(&path, slotkeeper(&["completions", shell])).unwrap();
        path
    };
    let bash = script("bash");
    output(Command::new("bash").arg("-n").arg(&bash));
    assert_eq!(bash_offers(&bash, &["set-l"]), ["set-limit"]);
    assert_eq!(bash_offers(&bash, &["run", "--kill"]), ["--kill-after"]);
    assert_eq!(bash_offers(&bash, &["probe", "st"]), ["startup"]);
    assert_eq!(bash_offers(&bash, &["gua"]), [""], "a hidden command");
    let file = bash.to_str().unwrap();
    assert_eq!(bash_offers(&bash, &["run", "--config", &file[..file.len() - 1]]), [file]);

    output(reader("zsh").arg("-n").arg(script("zsh")));
    let fish = script("fish");
    output(reader("fish").arg("--no-execute").arg(&fish));
    let offers = |typed: &str| {
        let complete = format!("source {}; complete -C '{typed}'", fish.display());
        output(reader("fish").args(["--no-config", "-c", &complete]).env("HOME", folder.path()))
    };
    assert!(offers("slotkeeper set-l").starts_with("set-limit\t"), "{}", offers("slotkeeper set-l"));
    assert!(offers("slotkeeper run --kill").starts_with("--kill-after\t"));
}
