//! The event phrases of the log. Facts are in fields; tests import the phrases.

// Session and token.
pub const SESSION_CREATED: &str = "session created";
pub const SESSION_NODE_REFUSED: &str = "sessions created on the addressed agent's node";
pub const SESSION_RESUMED: &str = "session resumed";
pub const SESSION_ENDED: &str = "session ended";
pub const SESSION_RENEWED: &str = "session renewed";
pub const SESSION_RENEWAL_FAILED: &str = "session renewal failed";
pub const SESSION_REQUEST_FAILED: &str = "session request failed";
pub const SESSION_REQUEST_RECOVERED: &str = "session request recovered";
pub const LOGGED_IN: &str = "logged in to consul";
pub const LOGIN_FAILED: &str = "login failed";
pub const LOGOUT_FAILED: &str = "logout failed";

// Consul.
pub const REQUEST_ENDED: &str = "request to consul ended";
pub const REQUEST_FAILED: &str = "request failed";
pub const REQUEST_RECOVERED: &str = "request recovered";
pub const CONSUL_LEADERLESS: &str = "consul has no leader";
pub const CONSUL_LEADER_RECOVERED: &str = "consul has a leader again";
pub const CONSUL_UNAVAILABLE: &str = "consul unavailable";
pub const CONSUL_RECOVERED: &str = "consul available again";
pub const CONSUL_ADDRESS_CHANGED: &str = "consul address changed";
pub const CONSUL_ADDRESS_WITHOUT_SESSION: &str = "consul address without the resumed session";
pub const KEY_REFUSED: &str = "consul refused the name of a key";

// Slots.
pub const WAITING: &str = "waiting for a slot";
pub const WAIT_TIMED_OUT: &str = "timed out waiting for a slot";
pub const WAIT_UNANSWERED: &str = "timed out waiting for consul";
pub const SLOT_ACQUIRED: &str = "slot acquired";
pub const SLOT_RESUMED: &str = "slot resumed";
pub const SLOT_LOST: &str = "slot lost";
pub const SLOT_RELEASED: &str = "slot released";
pub const HOLDER_EVICTED: &str = "holder evicted";
pub const WAITER_EVICTED: &str = "waiter evicted";
pub const STOP_NOT_CONFIRMED: &str = "hook did not confirm that the workload has stopped";
pub const STOP_TIME_ENDED: &str = "stop time of the workload ended";
pub const BLOCKED: &str = "blocked";
pub const LIMIT_DIFFERS: &str = "stored limit differs from the configured limit";
pub const LIMIT_CHANGED: &str = "stored limit changed";
pub const LIMIT_SET: &str = "stored limit set";
pub const FORMAT_DIFFERS: &str = "stored format differs from the configured format";
pub const HOLDERS_PRUNED: &str = "dead holders pruned";
pub const WRITE_CONFLICT: &str = "another client wrote first";
pub const SEMAPHORE_REMOVED: &str = "semaphore removed";

// Locks.
pub const LOCK_HELD: &str = "lock held by this agent";
pub const LOCK_HELD_BY_OTHER: &str = "lock held by another session";
pub const LOCK_FREE: &str = "lock is free";
pub const LOCK_DELAYED: &str = "lock is free but in lock-delay";

// Leases of the control endpoints.
pub const LEASE_WAITING: &str = "lease request waiting";
pub const LEASE_WAIT_TIMED_OUT: &str = "lease request timed out";
pub const LEASE_LOCK_LEADER: &str = "lock leader seen by a lease request";
pub const LEASE_LOCK_DELAY: &str = "lock-delay seen by a lease request";
pub const LEASE_CLIENT_GONE: &str = "lease client disconnected";
pub const LEASE_UNCLAIMED: &str = "lease granted too late";
pub const LEASE_EXPIRED: &str = "lease not renewed by its client";
pub const LEASE_NOT_RELEASED: &str = "lease not released in time";

// The workload, the command and its guard.
pub const RUN_IN_RUN: &str = "run inside a command that holds a slot already";
pub const COMMAND_STARTED: &str = "command started";
pub const COMMAND_NOT_STARTED: &str = "command not started";
pub const COMMAND_STOPPING: &str = "command is being stopped";
pub const COMMAND_ENDED: &str = "command ended";
pub const ORPHANS_NOT_REAPED: &str = "orphans not reaped";
pub const GUARD_GONE: &str = "guard of the command ended unexpectedly";
pub const GUARD_SILENT: &str = "guard of the command takes no orders";
pub const GUARD_NOT_CONNECTED: &str = "guard did not connect in time";
pub const GUARD_STUCK: &str = "guard did not end the command in time";
pub const GUARD_START_STUCK: &str = "guard did not start the command in time";
pub const WORKLOAD_STARTED: &str = "workload started";
pub const WORKLOAD_ENDED: &str = "workload ended";
pub const ENDING_WORKLOAD: &str = "ending the workload";
pub const WORKLOAD_NOT_ENDED: &str = "workload process cannot be ended";
pub const HOOK_SUCCEEDED: &str = "hook succeeded";
pub const HOOK_FAILED: &str = "hook failed";
pub const HOOK_KILLED: &str = "hook killed";
pub const HOOK_NOT_STARTED: &str = "hook not started";
pub const HOOKS_KILLED: &str = "hooks killed at the end of the agent";

// Start and end of the agent.
pub const AGENT_STARTED: &str = "slotkeeper started";
pub const FAILED: &str = "slotkeeper failed";
pub const READY: &str = "ready";
pub const NOT_READY: &str = "not ready";
pub const ENDPOINTS_SERVED: &str = "endpoints served";
pub const CONTROL_ENDPOINTS_SERVED: &str = "control endpoints served";
pub const DEVELOPMENT_SERVER_STARTED: &str = "development server started";
pub const DEVELOPMENT_ADDRESS_IN_USE: &str =
    "configured address of consul not used by the development server";
pub const STOPPED_DURING_START: &str = "stop requested during the start";
pub const STOP_REPEATED: &str = "stop requested again";
pub const HOLDING_UNTIL_DONE: &str = "stop requested; holding until the workload says that it is done";
pub const HOLDING_FOR_TIME: &str = "stop requested; holding for drain.hold";
pub const WORKLOAD_NOT_DONE: &str = "workload did not say in time that it is done";
pub const WORKLOAD_WAIT_ENDED: &str = "wait for the workload ended";
pub const DRAIN_AWAITS_WORKLOAD: &str = "drain begins when the workload has ended";
pub const DRAIN_AWAITS_STOP_TIME: &str = "drain begins when the stop time of the workload has ended";
pub const DRAIN_STARTED: &str = "draining";
pub const DRAINED: &str = "drained";
pub const LEASES_LEFT: &str = "leases left to their clients";
pub const DRAIN_TIMED_OUT: &str = "drain timed out";

// Files.
pub const READINESS_FILE_LEFT: &str = "stale readiness file not removed";
pub const STATE_FILE_IGNORED: &str = "state file ignored";
pub const FILE_WRITE_FAILED: &str = "file not updated";
pub const FILE_LATE: &str = "file not updated in time";
pub const FILE_NOT_KEPT: &str = "file not kept up to date any more";
pub const FILE_RESTORED: &str = "file removed or changed by another process";
pub const TERMINATION_MESSAGE_NOT_WRITTEN: &str = "termination message not written";
pub const SERVICE_MANAGER_NOT_NOTIFIED: &str = "service manager not notified";

// Configuration and its reload.
pub const CONFIGURATION_WARNING: &str = "configuration warning";
pub const FILES_CHANGED: &str = "configuration files changed";
pub const FILES_NOT_WATCHED: &str = "configuration files not watched any more";
pub const RELOADED: &str = "configuration reloaded";
pub const RELOAD_FAILED: &str = "configuration not reloaded";
pub const RELOAD_QUEUED: &str = "configuration is being read; another read follows";
pub const RELOAD_READ_STUCK: &str =
    "the read that timed out has not ended; the configuration is read once more afterwards";
pub const RELOAD_READ_DISCARDED: &str = "timed-out read of the configuration ended and was discarded";
pub const SETTING_NOT_CHANGED: &str = "setting not changed";
pub const CHANGE_DEFERRED: &str = "change deferred";
pub const ENTRY_NOT_IN_GROUP: &str = "added entry acquired independently until a restart";
pub const GROUP_HELD_IN_PART: &str =
    "resumed only a part of the required slots: acquiring the others independently";
pub const ENTRY_PENDING: &str = "entry pending";
pub const PENDING_ENTRY_ADDED: &str = "pending entry added";
