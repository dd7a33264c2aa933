//! What keeps a client from acquiring until a person acts.

/// What is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The kind.
    pub kind: ObstacleKind,
    /// The text for logs and the status.
    pub why: String,
}

/// The kinds of obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObstacleKind {
    /// The key has other content, and no live session holds it.
    OtherContent,
    /// The key has other content that a session holds, which may release it.
    OtherContentHeld,
    /// The stored limit and format do not allow what is wanted.
    Limit,
    /// The stored limit is below what an acquire group wants.
    LimitBelowGroup,
}

impl Obstacle {
    /// Content of the key that is not what is wanted. `held`: by a session.
    pub(crate) fn other_content(held: bool, why: String) -> Self {
        let kind = if held { ObstacleKind::OtherContentHeld } else { ObstacleKind::OtherContent };
        Self { kind, why }
    }
}
