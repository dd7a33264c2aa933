//! "Did you mean": the known name nearest to a misspelt one.

/// The name of `known` that `name` misspells, with at most a third of its characters wrong. Two characters in the wrong order
/// count as one error.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer name does not misspell a known one, and the distance costs the product of both lengths.
    const MAX_CHARS: usize = 64;
    if name.chars().count() > MAX_CHARS {
        return None;
    }
    let name = normalised(name);
    known
        .into_iter()
        .map(|known| (strsim::osa_distance(&name, &normalised(known)), known))
        .filter(|(distance, known)| *distance <= known.chars().count().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// `camelCase` and `kebab-case` are the commonest misspellings of `snake_case`: they count as no error.
fn normalised(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-' | '.')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_far_names_are_not() {
        let known = ["limit", "limit_policy", "prefix", "on_lost"];
        assert_eq!(nearest("limt", known), Some("limit"));
        assert_eq!(nearest("limitPolicy", known), Some("limit_policy"));
        assert_eq!(nearest("on-lost", known), Some("on_lost"));
        assert_eq!(nearest("perfix", known), Some("prefix"));
        assert_eq!(nearest("replicas", known), None);
        assert_eq!(nearest("x", known), None);
        assert_eq!(nearest(&"limit".repeat(100), known), None);
    }
}
