use proptest::prelude::*;

use super::*;

fn ids(record: &Record) -> Vec<&str> {
    record.holders.iter().map(SessionId::as_str).collect()
}

#[test]
fn reads_the_guides_form_and_rewrites_it_as_found() {
    let found = br#"{"Limit":2,"Holders":["a","b"],"Note":"ours"}"#;
    let mut record = Record::decode(found, 0).unwrap();
    assert_eq!((record.limit, ids(&record), record.form()), (2, vec!["a", "b"], Form::List));
    assert_eq!(record.encode(), found);
    record.holders.remove(0);
    assert_eq!(record.encode(), br#"{"Limit":2,"Holders":["b"],"Note":"ours"}"#);
}

#[test]
fn reads_the_go_apis_form_and_rewrites_it_as_found() {
    let found = br#"{"Limit":3,"Holders":{"a":true,"b":false}}"#;
    let mut record = Record::decode(found, SEMAPHORE_FLAGS).unwrap();
    assert_eq!((ids(&record), record.form()), (vec!["a", "b"], Form::Map));
    record.holders.push(SessionId::from("c"));
    assert_eq!(record.encode(), br#"{"Limit":3,"Holders":{"a":true,"b":true,"c":true}}"#);
    assert_eq!(record.flags(), 16_210_313_421_097_356_768);
}

#[test]
fn keeps_spelling_of_names() {
    // A Java client of the semaphore guide writes them in lower case.
    let found = br#"{"limit":3,"holders":["x"]}"#;
    assert_eq!(Record::decode(found, 0).unwrap().encode(), found);
}

#[test]
fn an_identity_in_the_handoff_list_is_as_in_words() {
    let some = |text: &str| Some(text.to_owned());
    let host = Identity { host: some("vm"), user: some("root"), ..Identity::default() };
    let pod = Identity { pod: some("loader-7"), ..host.clone() };
    for who in [
        Identity { name: some("import"), pid: Some(7), ..host.clone() },
        Identity { pid: Some(7), ..host.clone() },
        Identity { namespace: some("batch"), name: some("import"), ..pod.clone() },
        Identity { name: some("import"), ..Identity::default() },
        host,
        pod,
    ] {
        let mut record = Record::new(Form::List, 1);
        record.set_next(vec!["a".into()], |_| Some(&who));
        let decoded = Record::decode(&record.encode(), 0).unwrap();
        assert_eq!(decoded.next_who(&"a".into()).unwrap().in_words(), who.in_words());
    }
}

#[test]
fn identities_of_the_handoff_list_are_bounded_and_go_with_their_sessions() {
    let long = "n".repeat(400);
    let who = |name: &str| format!(r#"["{name}","vm",7]"#);
    let value = |next: &str, who: &str| {
        format!(r#"{{"Limit":1,"Holders":[],"Next":[{next}],"NextWho":{who},"Note":1}}"#)
    };
    let next = r#""0123456789-a","bcd""#;
    let found = format!(r#"{{"01234567":{},"bcd":{},"gone":{}}}"#, who(&long), who("b"), who("g"));
    let mut record = Record::decode(value(next, &found).as_bytes(), 0).unwrap();
    let name = |record: &Record, session: &str| record.next_who(&session.into())?.name.clone();
    assert_eq!(name(&record, "0123456789-a"), Some(format!("{}…", "n".repeat(100))));
    assert_eq!((name(&record, "bcd").as_deref(), name(&record, "gone")), (Some("b"), None));
    // An older client that hands off leaves the field as it is.
    record.next.remove(0);
    let rest = value(r#""bcd""#, r#"{"bcd":["b","vm",7]}"#);
    assert_eq!(String::from_utf8(record.encode()).unwrap(), rest);
    assert!(Record::decode(value(r#""bcd""#, &found).as_bytes(), 0).unwrap().agrees(&record));
    // Without names the field is gone, and what is no map of identities counts for none.
    record.next.clear();
    assert_eq!(record.encode(), br#"{"Limit":1,"Holders":[],"Note":1}"#);
    for odd in ["7", "[]", r#"{"bcd":7}"#, r#"{"bcd":["b","vm",-1]}"#, r#"{"bcd":["b","vm"]}"#] {
        let record = Record::decode(value(r#""bcd""#, odd).as_bytes(), 0).unwrap();
        assert_eq!((name(&record, "bcd"), record.next.len()), (None, 1), "{odd}");
    }
}

#[test]
fn null_holders_take_their_form_from_the_flags() {
    let found = br#"{"Limit":3,"Holders":null}"#;
    assert_eq!(Record::decode(found, 0).unwrap().form(), Form::List);
    assert_eq!(Record::decode(found, SEMAPHORE_FLAGS).unwrap().form(), Form::Map);
}

#[test]
fn refuses_what_is_no_semaphore_and_says_what_it_found() {
    let cases: [(&[u8], u64, &str); 13] = [
        (b"", LOCK_FLAGS, "single-key lock"),
        (b"", 0, "not a JSON object but ``"),
        (b"hello \x1b[31m", 0, "hello \\u{1b}[31m"),
        (b"[1]", 0, "`[1]`"),
        (br#"{"Limit":1}"#, 0, "without the field Holders"),
        (br#"{"Holders":[]}"#, 0, "without the field Limit"),
        (br#"{"Limit":1,"limit":2,"Holders":[]}"#, 0, "Limit twice"),
        (br#"{"Limit":-1,"Holders":[]}"#, 0, "Limit is `-1`"),
        (br#"{"Limit":1.5,"Holders":[]}"#, 0, "Limit is `1.5`"),
        // Go refuses it too.
        (
            br#"{"Limit":2.0,"Holders":[]}"#,
            0,
            "Limit is `2.0`, not a whole number from 0 to 4294967295, written without",
        ),
        (br#"{"Limit":2e0,"Holders":[]}"#, 0, "Limit is `2e0`"),
        (br#"{"Limit":4294967296,"Holders":[]}"#, 0, "`4294967296`, not a whole number from 0 to 4294967295"),
        (br#"{"Limit":1,"Holders":[7]}"#, 0, "Holders are `[7]`"),
    ];
    for (value, flags, said) in cases {
        let error = Record::decode(value, flags).unwrap_err().to_string();
        assert!(error.contains(said), "{error:?} should say {said:?}");
    }
    let (spaces, record) = (" ".repeat(MAX_RECORD_BYTES - 25), r#"{"Limit":1,"Holders":[]}"#);
    assert!(Record::decode(format!("{spaces}{record} ").as_bytes(), 0).is_ok());
    let error = Record::decode(format!("{spaces}{record}  ").as_bytes(), 0).unwrap_err();
    assert_eq!(error.to_string(), "it has 524289 bytes, more than any semaphore's record");
}

#[test]
fn foreign_numbers_stay_as_they_are_written() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let numbers = "123456789012345678901234567890,1.10,-0,1E5,1e400,0.1000000000000000055511151231257827";
    let found = format!(r#"{{"Limit":2,"Holders":["a"],"Odd":[{numbers}],"Deep":{deep},"Big":1e400}}"#);
    let mut record = Record::decode(found.as_bytes(), 0).unwrap();
    assert_eq!(record.encode(), found.as_bytes());
    record.holders.clear();
    assert_eq!(String::from_utf8(record.encode()).unwrap(), found.replace(r#""a""#, ""));
}

#[test]
fn of_a_name_that_stands_twice_the_last_value_counts() {
    let record = Record::decode(br#"{"Limit":1,"Holders":[],"Limit":2}"#, 0).unwrap();
    assert_eq!((record.limit, record.encode()), (2, br#"{"Limit":2,"Holders":[]}"#.to_vec()));
}

#[test]
fn the_hint_is_written_and_removed_and_ignored_if_invalid() {
    let found = br#"{"Limit":1,"Holders":["a"],"Next":["b","b","c"],"Note":1}"#;
    let mut record = Record::decode(found, 0).unwrap();
    assert_eq!(record.next, ["b", "b", "c"].map(SessionId::from));
    assert_eq!(record.encode(), found);
    record.next.clear();
    assert_eq!(record.encode(), br#"{"Limit":1,"Holders":["a"],"Note":1}"#);
    for odd in [r#""b""#, "[1]", "null", r#"{"b":true}"#] {
        let found = format!(r#"{{"Limit":1,"Holders":[],"Next":{odd}}}"#);
        assert_eq!(Record::decode(found.as_bytes(), 0).unwrap().next, []);
    }
}

#[test]
fn counts_slots_not_sessions() {
    let record = Record::decode(br#"{"Limit":5,"Holders":["a","b","a"]}"#, 0).unwrap();
    assert_eq!((record.taken(), record.slots_of(&"a".into()), record.slots_of(&"c".into())), (3, 2, 0));
}

proptest! {
    #![proptest_config(slotkeeper_test_seed::cases())]

    #[test]
    fn any_bytes_decode_or_are_refused(value: Vec<u8>, flags: u64) {
        let _ = Record::decode(&value, flags);
    }

    #[test]
    fn what_is_written_is_read_back(limit: u32, holders in prop::collection::btree_set("[a-f0-9-]{1,36}", 0..20), map: bool) {
        let form = if map { Form::Map } else { Form::List };
        let mut record = Record::new(form, limit);
        record.holders = holders.iter().map(SessionId::from).collect();
        let read = Record::decode(&record.encode(), record.flags()).unwrap();
        prop_assert_eq!(read.form(), form);
        prop_assert_eq!(read.limit, limit);
        prop_assert_eq!(&read.holders, &record.holders);
        prop_assert_eq!(read.encode(), record.encode());
    }
}
