# The least rights that slotkeeper needs: docs/consul-acl.md says how an agent gets a token with this policy.

# For each semaphore, its prefix with a slash: .lock and the contender keys are below it.
key_prefix "service/warehouse/writers/" { policy = "write" }

# For each single-key lock, its key.
key "service/nightly/leader" { policy = "write" }

# The session that holds them, on the catalog node of session.node. For `session.node: agent` write `session_prefix ""`.
session "slotkeeper" { policy = "write" }

# The registration of that node, where it is missing.
node "slotkeeper" { policy = "write" }
