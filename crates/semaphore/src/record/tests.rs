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
fn counts_slots_not_sessions() {
    let record = Record::decode(br#"{"Limit":5,"Holders":["a","b","a"]}"#, 0).unwrap();
    assert_eq!((record.taken(), record.slots_of(&"a".into()), record.slots_of(&"c".into())), (3, 2, 0));
}

/// The record of the crate's front page.
const SHOWN: &str = r#"{"Limit":2,"Holders":["5b2f","9c01"],"slotkeeper":{"of":2867728333,"after":40,"indexes":[0,1],"next":["c3d4","e5f6"],"waiting":3}}"#;

#[test]
fn hints_are_read_and_written_as_the_front_page_shows_them() {
    assert!(include_str!("../../README.md").contains(SHOWN));
    let record = Record::decode(SHOWN.as_bytes(), 0).unwrap();
    assert_eq!(String::from_utf8(record.encode()).unwrap(), SHOWN);
    assert_eq!(
        (record.next(), record.is_attended()),
        (["c3d4", "e5f6"].map(SessionId::from).as_slice(), true)
    );
    assert_eq!(record.indexes_of(&"9c01".into()), [1]);
}

#[test]
fn a_write_of_a_client_that_does_not_know_the_hints_makes_them_invalid() {
    let hints = |value: &str| Record::decode(value.as_bytes(), 0).unwrap().hints;
    // It keeps the field, as it keeps others, or drops it.
    for (before, after) in [
        (r#""5b2f","9c01""#, r#""9c01""#),
        (r#""5b2f","9c01""#, r#""9c01","5b2f""#),
        (r#""Limit":2"#, r#""Limit":3"#),
        (r#""slotkeeper""#, r#""else""#),
        (r#""indexes":[0,1]"#, r#""indexes":[0]"#),
        (r#"{"of""#, r#"["of"],"x":{"of""#),
    ] {
        assert_eq!(hints(&SHOWN.replace(before, after)), None, "{after}");
    }
    assert!(hints(SHOWN).is_some());
}

#[test]
fn no_write_is_equal_to_the_one_before() {
    let record = Record::decode(SHOWN.as_bytes(), 0).unwrap();
    let again = record.clone().after(41);
    assert!(record.agrees(&again) && record.encode() != again.encode());
}

#[test]
fn hints_of_the_map_form_are_about_the_holders_in_the_order_in_which_they_are_read() {
    let mut record = Record::new(Form::Map, 2);
    record.holders = ["b", "a"].map(SessionId::from).into();
    record.hints = Some(Hints { indexes: vec![1, 0], ..Hints::default() });
    let read = Record::decode(&record.encode(), SEMAPHORE_FLAGS).unwrap();
    assert_eq!((read.indexes_of(&"b".into()), read.indexes_of(&"a".into())), (vec![1], vec![0]));
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
        record.hints = Some(Hints { indexes: (0..record.taken()).collect(), ..Hints::default() });
        let read = Record::decode(&record.encode(), record.flags()).unwrap();
        prop_assert_eq!(read.form(), form);
        prop_assert_eq!(read.limit, limit);
        prop_assert_eq!(&read.holders, &record.holders);
        prop_assert_eq!(&read.hints, &record.hints);
        prop_assert_eq!(read.encode(), record.encode());
    }
}
