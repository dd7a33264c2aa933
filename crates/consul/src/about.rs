//! What an address says of the agent behind it, and of its cluster.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::Value;

use super::request::Request;
use super::{Client, Error, Operation};

/// The cluster behind an address. Consul shows it to every token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The leader's address; `None` while there is no leader.
    pub leader: Option<String>,
    /// The addresses of the servers. Two addresses that have one in common belong to one cluster.
    pub peers: BTreeSet<String>,
    /// The clock of the agent, or of a proxy before it, in whole seconds.
    pub date: Option<SystemTime>,
}

impl Client {
    /// Reads what the agent in use knows of its cluster.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        let answer = self.send(Request::get(Operation::Peers, "status/peers", "")).await?;
        let date = answer.date.as_deref().and_then(moment);
        Ok(Cluster { leader: self.leader().await?, peers: answer.json()?, date })
    }

    /// Reads what the agent in use says of itself, as Consul writes it. The token needs the right to read the agent.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn agent(&self) -> Result<Value, Error> {
        self.send(Request::get(Operation::AgentSelf, "agent/self", "").long()).await?.json()
    }
}

/// Parses a header `Date`, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn moment(date: &str) -> Option<SystemTime> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<_> = date.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = words.as_slice() else { return None };
    let month = MONTHS.find(month).filter(|at| month.len() == 3 && at % 3 == 0)? / 3 + 1;
    humantime::parse_rfc3339(&format!("{year}-{month:02}-{day}T{time}Z")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_an_answer() {
        let parsed = moment("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(humantime::format_rfc3339(parsed).to_string(), "1994-11-06T08:49:37Z");
        for text in
            ["", "Sun, 06 ovD 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET", "1994-11-06T08:49:37Z"]
        {
            assert_eq!(moment(text), None, "{text}");
        }
    }
}
