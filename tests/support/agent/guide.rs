//! A client that does what Consul's semaphore guide says, and nothing beyond.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use slotkeeper_consul::{Behavior, Blocking, Client, KvPair, Read, SessionSpec, Settings, Unobserved};
use tokio::runtime::Runtime;

use crate::support::kv::{self, Put};

/// So long there is always some news where there is a crowd.
const WAIT: Duration = Duration::from_secs(30);

/// All that the guide knows of `.lock`; what else stands there is lost when it writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    limit: usize,
    holders: Vec<String>,
}

/// One such client, with a session and a contender.
pub(crate) struct Guide {
    client: Client,
    runtime: Runtime,
    prefix: &'static str,
    limit: usize,
    session: String,
}

impl Guide {
    /// Enters its contender.
    pub(crate) fn enter(consul: &str, prefix: &'static str, limit: usize) -> Self {
        let settings = Settings { address: consul.parse().unwrap(), ..Settings::default() };
        let client = Client::new(&settings, std::sync::Arc::new(Unobserved)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let spec = SessionSpec {
            name: "guide".into(),
            ttl: Duration::from_secs(600),
            behavior: Behavior::Delete,
            lock_delay: Duration::ZERO,
            node: None,
            node_checks: Vec::new(),
            service_checks: Vec::new(),
        };
        let session = runtime.block_on(client.session_create(&spec)).unwrap();
        let guide = Self { client, runtime, prefix, limit, session };
        let own = format!("{prefix}/{}", guide.session);
        assert!(guide.put(&own, b"db-node-1", Put::Acquire(&guide.session)));
        guide
    }

    /// Waits for a slot as long as it takes.
    pub(crate) fn acquire(&self) {
        let mut index = 0;
        loop {
            let blocking = Some(Blocking { index, wait: WAIT });
            let directory = self.directory();
            let list = self.client.kv_list(&directory, Read { blocking, ..Read::default() });
            let list = self.runtime.block_on(list).unwrap();
            assert_ne!(list.index, index, "nothing happened for {WAIT:?}, and the slot is not to be had");
            index = list.index;
            let (mut record, at) = self.record(&list.value);
            assert_eq!(record.limit, self.limit, "the limits agree");
            let alive = |holder: &String| list.value.iter().any(|pair| pair.session.as_ref() == Some(holder));
            record.holders.retain(alive);
            if record.holders.len() < self.limit {
                record.holders.push(self.session.clone());
                if self.write(&record, at) {
                    return;
                }
                // A race: look again at once.
                index = 0;
            }
        }
    }

    /// Gives the slot back, and goes.
    pub(crate) fn release(self) {
        loop {
            let list =
                self.runtime.block_on(self.client.kv_list(&self.directory(), Read::default())).unwrap();
            let (mut record, at) = self.record(&list.value);
            assert!(record.holders.contains(&self.session), "the slot was taken away: {record:?}");
            record.holders.retain(|holder| *holder != self.session);
            if self.write(&record, at) {
                break;
            }
        }
        let own = format!("{}/{}", self.prefix, self.session);
        self.runtime.block_on(kv::delete(&self.client, &own)).unwrap();
        self.runtime.block_on(self.client.session_destroy(&self.session)).unwrap();
    }

    fn directory(&self) -> String {
        format!("{}/", self.prefix)
    }

    fn record(&self, pairs: &[KvPair]) -> (Record, u64) {
        let key = format!("{}/.lock", self.prefix);
        match pairs.iter().find(|pair| pair.key == key) {
            Some(pair) => (serde_json::from_slice(&pair.value).unwrap(), pair.modify_index),
            None => (Record { limit: self.limit, holders: Vec::new() }, 0),
        }
    }

    fn write(&self, record: &Record, at: u64) -> bool {
        let key = format!("{}/.lock", self.prefix);
        self.put(&key, &serde_json::to_vec(record).unwrap(), Put::Cas(at))
    }

    fn put(&self, key: &str, value: &[u8], put: Put<'_>) -> bool {
        self.runtime.block_on(kv::put(&self.client, key, value, put, 0)).unwrap()
    }
}
