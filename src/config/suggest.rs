//! Did you mean: the known name nearest to a misspelt one.

/// The one of `known` that `name` was probably meant to be: at most a third of it written wrongly.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Beyond this nobody misspelt one of our names, and the distance costs the product of both lengths.
    const LONGEST: usize = 64;
    if name.chars().count() > LONGEST {
        return None;
    }
    let name = normalised(name);
    known
        .into_iter()
        .map(|known| (distance(&name, &normalised(known)), known))
        .filter(|(distance, known)| *distance <= known.chars().count().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// `camelCase` and `kebab-case` are the commonest misspellings of `snake_case`: they count as none.
fn normalised(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-' | '.')).flat_map(char::to_lowercase).collect()
}

/// Levenshtein's distance: insertions, deletions and replacements of one character each.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
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
