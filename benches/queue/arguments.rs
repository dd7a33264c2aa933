//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Whole lives of many clients in line for one semaphore.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Numbers of clients, played one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [20, 120, 400], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: Vec<u32>,
    /// How long each client holds its slot.
    #[arg(long, default_value = "200ms", value_parser = some_time)]
    pub(crate) hold: Duration,
    /// Leave `consul lock` out.
    #[arg(long)]
    pub(crate) no_peer: bool,
    /// Print requests by their kind too.
    #[arg(long)]
    pub(crate) breakdown: bool,
    /// Draw the figures into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// What `cargo bench` passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn some_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("write more than 0s: all else is measured by it".into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}
