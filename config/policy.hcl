# The least rights that slotkeeper needs: docs/consul-acl.md says how an agent gets a token with this policy.

# For each semaphore, its prefix with a slash: .lock and the contender keys are below it.
key_prefix "service/warehouse/writers/" { policy = "write" }

# For each single-key lock, its key.
key "service/nightly/leader" { policy = "write" }

# The session that holds them. If session.node ties it to one node, `session "NODE"` is enough.
session_prefix "" { policy = "write" }
