//! The command line.

use clap::Parser;

use slotkeeper_test_seed::VARIABLE;

/// Random faults against three Consul servers and dozens of `slotkeeper run`; exits with 1 where an invariant is violated.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// How long to play, before everybody is let to an end.
    #[arg(default_value_t = 2.0)]
    pub(crate) minutes: f64,
    /// What the plan of faults, and of jobs, is drawn from. It decides what is done when and to the how-manieth; what
    /// the processes are doing in that instant cannot be repeated.
    #[arg(long, env = VARIABLE)]
    pub(crate) seed: Option<u64>,
    /// Instead: cut the holder of a slot off from Consul, that of ours and that of `consul lock`, so many times.
    #[arg(long, value_name = "TRIALS", num_args = 0..=1, default_missing_value = "3")]
    pub(crate) black_hole: Option<u32>,
    /// Instead: so many rounds of jobs that want slots of the same semaphores in different orders.
    #[arg(long, value_name = "ROUNDS", num_args = 0..=1, default_missing_value = "200")]
    pub(crate) crossed: Option<u32>,
    /// Instead: kill the holder of a slot together with its first waiter, so many times, and let clients with short waits come.
    #[arg(long, value_name = "ROUNDS", num_args = 0..=1, default_missing_value = "10")]
    pub(crate) impatient: Option<u32>,
    /// Instead: restart a client agent, and servers one by one, so many times each, under twenty jobs.
    #[arg(long, value_name = "RESTARTS", num_args = 0..=1, default_missing_value = "10")]
    pub(crate) restarts: Option<u32>,
    /// What `cargo bench` passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}
