//! Agents as instances of slotkeeper@.service.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::ops::Deref;

use serde_json::Value;

use crate::consul::Consul;
use crate::http;
use crate::machine::Machine;
use crate::operator::Operator;
use crate::support::consul::Setup;
use crate::support::ports::Ports;
use crate::wait_for;

/// The semaphore of all tests here, and its prefix.
pub(crate) const PREFIX: &str = "service/warehouse/writers";

/// A machine with a Consul, whose instances have endpoints of their own.
pub(crate) struct Host {
    machine: Machine,
    pub(crate) consul: Consul,
    pub(crate) operator: Operator,
    endpoints: RefCell<BTreeMap<String, Ports>>,
}

impl Host {
    pub(crate) fn boot() -> Self {
        Self::boot_with(Setup::default())
    }

    /// With a Consul as `setup` says.
    pub(crate) fn boot_with(setup: Setup) -> Self {
        Self::of(Machine::boot(), setup)
    }

    pub(crate) fn of(machine: Machine, setup: Setup) -> Self {
        let consul = Consul::start_with(setup);
        let operator = Operator::at(&consul.address());
        Self { machine, consul, operator, endpoints: RefCell::default() }
    }

    /// Where its Consul listens.
    pub(crate) fn address(&self) -> String {
        self.consul.address()
    }

    /// Writes an instance's configuration: a semaphore of one slot at [`PREFIX`]. `entry` is the rest of that entry, `rest` has
    /// other sections.
    pub(crate) fn configure(&self, instance: &str, entry: &str, rest: &str) {
        let mut endpoints = self.endpoints.borrow_mut();
        let ports = endpoints.entry(instance.to_owned()).or_insert_with(Ports::reserve);
        let config = format!(
            "consul: {{address: '{}'}}\nhttp: {{listen: '{}'}}\nlog: {{level: debug}}\n\
             semaphores: [{{name: writers, prefix: {PREFIX}, limit: 1{entry}}}]\n{rest}",
            self.consul.address(),
            ports.addr(0)
        );
        self.write(&format!("/etc/slotkeeper/{instance}.yaml"), &config);
    }

    /// Adds settings to a unit.
    pub(crate) fn drop_in(&self, unit: &str, text: &str) {
        let unit = if unit.contains('.') { unit.to_owned() } else { format!("{unit}.service") };
        self.write(&format!("/etc/systemd/system/{unit}.d/test.conf"), text);
        self.systemctl(&["daemon-reload"]);
    }

    /// An instance's status, if it serves it.
    pub(crate) fn try_status(&self, instance: &str) -> Option<Value> {
        let address = self.endpoints.borrow()[instance].addr(0).to_string();
        let open = TcpStream::connect(&address).is_ok();
        open.then(|| serde_json::from_str(&http::request(&address, "GET /v1/status", "").body).unwrap())
    }

    /// The status of an instance that runs.
    pub(crate) fn status(&self, instance: &str) -> Value {
        self.try_status(instance).unwrap_or_else(|| panic!("no agent serves the status of {instance}"))
    }

    /// The session of an instance and its fencing token.
    pub(crate) fn holding(&self, instance: &str) -> (String, u64) {
        let status = self.status(instance);
        let token = status["semaphores"][0]["fencing_token"].as_u64();
        let session = status["session"]["id"].as_str().unwrap_or_default();
        (session.to_owned(), token.unwrap_or_else(|| panic!("no slot is held: {status}")))
    }

    /// Waits until an agent waits in the queue behind one that holds the slot.
    pub(crate) fn await_waiter(&self) {
        wait_for("an agent in the queue", || self.operator.keys(PREFIX).len() == 3);
    }

    /// Waits until an instance holds its slot.
    pub(crate) fn await_holding(&self, instance: &str) {
        wait_for("the slot", || self.status(instance)["semaphores"][0]["state"] == "held");
    }

    /// Waits until an instance has written the fencing token of its slot into its files, which it does after `READY=1`.
    pub(crate) fn await_files(&self, instance: &str) {
        let (_, token) = self.holding(instance);
        for file in ["session.json", "ready"] {
            let path = format!("/run/slotkeeper/{instance}/{file}");
            wait_for(&format!("the token in {path}"), || self.read(&path).contains(&token.to_string()));
        }
    }

    /// The process id of a service inside the machine.
    pub(crate) fn main_pid(&self, unit: &str) -> String {
        self.property(unit, "MainPID")
    }

    /// Waits until a service has another process than this one and is up.
    pub(crate) fn await_another_process(&self, unit: &str, earlier: &str) {
        wait_for(&format!("another process of {unit} than {earlier}"), || {
            self.main_pid(unit) != earlier && self.property(unit, "ActiveState") == "active"
        });
    }
}

impl Deref for Host {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}
