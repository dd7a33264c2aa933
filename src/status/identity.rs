//! The schema of a participant's identity, for the OpenAPI document.
//!
//! The type belongs to the protocol ([`slotkeeper_semaphore::Identity`], part of a contender key), which does not depend on
//! OpenAPI.

use utoipa::ToSchema;

/// The identity of a participant, for people.
#[derive(ToSchema)]
#[schema(as = Identity)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) struct IdentitySchema {
    /// The job's name: that of `run --name`, or of its command.
    #[schema(nullable = false)]
    name: Option<String>,
    /// The command that it runs, if its file name is not the job's name.
    #[schema(nullable = false)]
    command: Option<String>,
    /// The operating system's user.
    #[schema(nullable = false)]
    user: Option<String>,
    /// The pod's name.
    #[schema(nullable = false)]
    pod: Option<String>,
    /// The pod's namespace.
    #[schema(nullable = false)]
    namespace: Option<String>,
    /// The Kubernetes node.
    #[schema(nullable = false)]
    node: Option<String>,
    /// The host's name; in a container, the container's.
    #[schema(nullable = false)]
    host: Option<String>,
    /// The agent's process id.
    #[schema(nullable = false)]
    pid: Option<u32>,
}

#[cfg(test)]
mod tests {
    use slotkeeper_semaphore::Identity;
    use utoipa::PartialSchema as _;

    use super::*;

    #[test]
    fn the_schema_has_the_fields_of_the_type() {
        let text = || Some("x".to_owned());
        let all = Identity {
            name: text(),
            command: text(),
            user: text(),
            pod: text(),
            namespace: text(),
            node: text(),
            host: text(),
            pid: Some(1),
        };
        let value = serde_json::to_value(all).unwrap();
        let schema = serde_json::to_value(IdentitySchema::schema()).unwrap();
        let names =
            |object: &serde_json::Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&schema["properties"]), names(&value));
    }
}
