export { Agent, type AcquireOptions, type AgentOptions, type Reload } from "./agent.js";
export { LostError, RefusedError, SlotkeeperError, TimedOutError, UnavailableError } from "./errors.js";
export { Lease, type Kind, type LeaseInfo } from "./lease.js";
export type { Duration } from "./time.js";
