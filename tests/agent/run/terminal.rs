//! A terminal and its shell: Ctrl-C, Ctrl-Z, `fg` and `bg` do what they would do without us.

use crate::consul::Consul;
use crate::process::BINARY;
use crate::terminal::Shell;

fn run(consul: &Consul, command: &str) -> String {
    format!("{BINARY} run p/one -n 1 --http-addr {} -- {command}", consul.address())
}

const SHOWS_INT: &str =
    r#"sh -c 'trap "echo interrupted; exit 9" INT; echo "up and" "running"; while :; do sleep 0.05; done'"#;

#[test]
fn ctrl_c_reaches_the_command() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    shell.press(&format!("{}; echo \"code\" $?\n", run(&consul, SHOWS_INT)));
    shell.expect("up and running");
    shell.press("\x03");
    shell.expect("interrupted");
    shell.expect("code 9");
}

#[test]
fn ctrl_z_suspends_the_job_and_fg_goes_on_with_it() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    // One process: of a job with more, a shell waits for the first only, and another that is slow to stop may still read
    // the next line. So it is without us too.
    shell.press(&format!("{}\n", run(&consul, "sh -c 'echo \"up and\" \"running\"; exec cat'")));
    shell.expect("up and running");
    shell.press("one\n");
    // As it is typed, and as `cat` has it.
    shell.expect("one\r\none\r\n");
    shell.press("\x1a");
    shell.expect("Stopped");
    shell.press("echo \"the shell\" \"is back\"\n");
    shell.expect("the shell is back");
    shell.press("fg\n");
    shell.expect("cat'");
    shell.press("two\n");
    shell.expect("two\r\ntwo\r\n");
    shell.press("\x04");
    shell.press("echo \"code\" $?\n");
    shell.expect("code 0");
}

#[test]
fn in_the_background_the_command_stops_only_when_it_reads_the_terminal() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    shell.press(&format!(
        "{} &\n",
        run(&consul, "sh -c 'echo \"up and\" \"running\"; read line; echo \"read\" $line'")
    ));
    shell.expect("up and running");
    // A shell tells of it when it is asked.
    shell.press("until jobs | grep Stopped; do sleep 0.05; done\n");
    shell.expect("Stopped");
    shell.expect("read line");
    shell.press("fg\n");
    shell.expect("read line");
    shell.press("something\n");
    shell.expect("read something");
    shell.press("echo \"code\" $?\n");
    shell.expect("code 0");
}

#[test]
fn a_program_in_the_pipe_keeps_the_terminal_until_the_command_reads_it() {
    let consul = Consul::start();
    let mut shell = Shell::start();
    // The one behind reads the terminal first, as a pager does, then the command.
    let folder = tempfile::tempdir().unwrap();
    let read = folder.path().join("read").display().to_string();
    let behind = format!(r#"sh -c 'read key < /dev/tty; : > {read}; echo "key" $key; cat'"#);
    let command =
        format!(r#"sh -c 'until [ -e {read} ]; do sleep 0.05; done; read line; echo "line" $line'"#);
    shell.press(&format!("{} | {behind}\n", run(&consul, &command)));
    shell.press("a\n");
    shell.expect("key a");
    shell.press("b\n");
    shell.expect("line b");
}
