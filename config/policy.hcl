# The least that slotkeeper needs of Consul's ACLs: docs/consul-acl.md says how an agent comes to a token with it.

# For each semaphore, its prefix with a slash: .lock and the contenders lie below.
key_prefix "service/warehouse/writers/" { policy = "write" }

# For each single-key lock, its key.
key "service/nightly/leader" { policy = "write" }

# The session that holds them. Where session.node ties it to one node, `session "NODE"` is enough.
session_prefix "" { policy = "write" }
