//! Keys in URLs.

/// Percent-encodes a key for a path. Slashes stay.
///
/// # Errors
///
/// No URL can carry the key. Consul's HTTP server cleans paths: `a//b` and `a/../b` would be redirected to other keys, and a slash at
/// the start would be lost. Transactions can name such keys, since their keys are in the body.
pub(super) fn encode(key: &str) -> Result<String, &'static str> {
    if key.starts_with('/') {
        return Err("a key cannot begin with a slash");
    }
    if key.contains("//") {
        return Err("a key with two slashes in a row cannot be sent in a URL");
    }
    if key.split('/').any(|part| part == "." || part == "..") {
        return Err("a key with a part that is `.` or `..` cannot be sent in a URL");
    }
    let mut encoded = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(hex(byte >> 4));
            encoded.push(hex(byte & 15));
        }
    }
    Ok(encoded)
}

fn hex(nibble: u8) -> char {
    char::from(if nibble < 10 { b'0' + nibble } else { b'A' + nibble - 10 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_stay_and_the_rest_is_escaped() {
        for (key, encoded) in [
            ("service/warehouse/.lock", "service/warehouse/.lock"),
            ("a b+c", "a%20b%2Bc"),
            ("50%/x?y#z&", "50%25/x%3Fy%23z%26"),
            ("é/☃", "%C3%A9/%E2%98%83"),
            ("a\\b\n", "a%5Cb%0A"),
            ("folder/", "folder/"),
            ("...", "..."),
            ("", ""),
        ] {
            assert_eq!(encode(key).as_deref(), Ok(encoded), "{key}");
        }
    }

    #[test]
    fn what_a_url_cannot_carry() {
        for key in ["/a", "a//b", "a/../b", "./a", "..", "a/."] {
            assert!(encode(key).is_err(), "{key}");
        }
    }
}
