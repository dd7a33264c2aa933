//! What runs on although nothing is told.

use std::time::Duration;

use serde_json::json;
use slotkeeper::internals::clock;

use crate::browser::Browser;
use crate::consul::Consul;
use crate::operator::Operator;
use crate::process::Lodger;
use crate::support::kv::Put;
use crate::wait_for;

const ONE: &str = "session: {ttl: 30s}\nsemaphores: [{name: writers, prefix: service/writers, limit: 1}]";

/// What the clocks of the page show.
#[derive(Debug)]
struct Clocks {
    lease: u64,
    bar: f64,
    waiting: u64,
    /// That of the first holder.
    holding: u64,
}

impl Clocks {
    fn of(page: &mut Browser) -> Option<Self> {
        let text = page.text();
        let style = page.attribute("#bar i", "style");
        let bar = style.split_once("scaleX(")?.1.split_once(')')?.0.parse().ok()?;
        let holding = page.texts(".age").first().and_then(|age| seconds(age, "for "))?;
        let [lease, waiting] = ["Lease: ", "waiting for "].map(|words| seconds(&text, words));
        Some(Self { lease: lease?, bar, waiting: waiting?, holding })
    }
}

#[test]
fn a_silent_consul_shows_in_the_headline_and_the_bar_before_the_slot_is_lost() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), ONE);
    agent.await_ready();
    let mut page = Browser::open(agent.address());
    page.await_texts(&["Ready", "Lease: "]);
    let bar = |page: &mut Browser| -> f64 {
        let style = page.attribute("#bar i", "style");
        style.split_once("scaleX(").unwrap().1.split_once(')').unwrap().0.parse().unwrap()
    };
    // Renewed each sixth of the TTL, a lease of nine tenths has at least two thirds of itself left.
    assert!(bar(&mut page) > 0.6, "{}", bar(&mut page));
    consul.signal(rustix::process::Signal::STOP);
    // A page that is opened now has never seen a longer lease.
    wait_for("the lease to be half over", || {
        agent.status()["session"]["expires_in_seconds"].as_f64() < Some(13.5)
    });
    let mut late = Browser::open(agent.address());
    for page in [&mut page, &mut late] {
        page.await_texts(&["Ready, but Consul does not answer"]);
        assert!(bar(page) < 0.5, "{}", bar(page));
    }
    consul.signal(rustix::process::Signal::CONT);
    page.await_texts(&["Everything required is held."]);
    wait_for("the warning to go", || !page.text().contains("does not answer"));
}

/// The time that stands behind these words.
fn seconds(text: &str, words: &str) -> Option<u64> {
    let told = text.split_once(words)?.1.split_whitespace().next()?;
    humantime::parse_duration(told).ok().map(|time| time.as_secs())
}

#[test]
fn times_run_on_between_two_events_and_a_renewal_changes_nothing_else() {
    let consul = Consul::start();
    let first = Lodger::start(&consul.address(), ONE);
    first.await_ready();
    let second = Lodger::start(&consul.address(), ONE);
    second.await_state("waiting");
    // Half a second for each that takes part passes between two listings: with five there is time for a clock to be seen running.
    let behind: Vec<_> = (0..3).map(|_| Lodger::start(&consul.address(), ONE)).collect();
    behind.iter().for_each(|one| one.await_state("waiting"));
    let mut page = Browser::open(second.address());
    page.await_texts(&["1st of 4 in the queue, waiting for ", "Lease: "]);

    let mut from = (page.told(), Clocks::of(&mut page));
    wait_for("times that run on with no event between", || {
        let now = Clocks::of(&mut page);
        if page.told() != from.0 {
            from = (page.told(), Clocks::of(&mut page));
            return false;
        }
        let (Some(from), Some(now)) = (&from.1, &now) else { return false };
        now.lease < from.lease
            && now.bar < from.bar
            && now.waiting > from.waiting
            && now.holding > from.holding
    });

    wait_for("a renewal that leaves the card alone", || {
        page.mark("article .slots");
        let mut least = Clocks::of(&mut page).unwrap();
        wait_for("a renewal", || {
            let now = Clocks::of(&mut page).unwrap();
            let renewed = now.lease > least.lease && now.bar > least.bar;
            if now.lease < least.lease {
                least = now;
            }
            renewed
        });
        page.count(".slots[data-marked]") == 1
    });

    // A machine that has slept knows no more what time it is: it asks.
    let asked = page.asked().len();
    page.sleep();
    wait_for("the page to ask anew", || page.asked().len() > asked);
    page.await_texts(&["1st of 4 in the queue, waiting for "]);
    page.await_gone("when last seen");
    page.assert_quiet(&[]);
}

#[test]
fn every_holder_and_waiter_has_the_time_for_which_it_holds_or_waits() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    const HOUR: u64 = 3600;
    // A minute more than what is shown, so that no time is another one by the end of the test.
    let since = |hours: u64| {
        let age = Duration::from_secs(hours * HOUR + 60);
        humantime::format_rfc3339_seconds(clock::wall().at(clock::now()) - age).to_string()
    };
    let participant = |state: &str, slots: u32, hours: u64| {
        let session = operator.create_session();
        let entry = json!({"slotkeeper": 1, "state": state, "slots": slots, "since": since(hours)});
        let key = format!("service/writers/{session}");
        operator.put(&key, &entry.to_string(), Put::Acquire(&session), 0);
        session
    };
    let (long, longer) = (participant("held", 1, 26), participant("held", 2, 100));
    let foreign = operator.create_session();
    operator.put(&format!("service/writers/{foreign}"), "", Put::Acquire(&foreign), 0);
    let holders = [long.as_str(), &longer, &longer, &foreign, "gone"];
    operator.put(
        "service/writers/.lock",
        &json!({"Limit": 5, "Holders": holders}).to_string(),
        Put::Plain,
        0,
    );
    participant("waiting", 1, 48);
    let agent = Lodger::start(
        &consul.address(),
        "semaphores: [{name: writers, prefix: service/writers, limit: 5, prune_delay: 10m, required: false}]\n\
         locks: [{name: leader, key: service/leader}]",
    );
    agent.await_ready();
    let mut page = Browser::open(agent.address());
    page.await_texts(&["2nd of 2 in the queue", "this agent leads for "]);
    let mut ends = page.texts("article:first-child .rows .end");
    let own = ends.pop().unwrap();
    assert_eq!(ends, ["dead", "for 1d2h", "2 slots for 4d4h", "", "for 2d"]);
    assert!(own.starts_with("this agent for ") && own.ends_with('s'), "{own}");
    page.assert_quiet(&[]);
}

#[test]
fn dates_are_in_a_named_time_zone_and_have_a_day_that_is_not_today() {
    let consul = Consul::start();
    let agent = Lodger::start(&consul.address(), ONE);
    agent.await_ready();
    let mut page = Browser::open(agent.address());
    page.await_texts(&["acquired", "Times are in "]);
    for (zone, shown) in [
        ("Asia/Tehran", "Times are in Asia/Tehran (UTC+3:30)"),
        ("America/Caracas", "Times are in America/Caracas (UTC−4)"),
        ("UTC", "Times are in UTC"),
    ] {
        page.set_zone(zone);
        wait_for(shown, || page.texts("#zone") == [shown]);
    }
    let at = page.attribute("#events time", "datetime");
    let date = humantime::parse_rfc3339(&at).unwrap();
    assert!(clock::wall().at(clock::now()).duration_since(date).unwrap() < Duration::from_secs(3600), "{at}");
    let time = at[11..19].to_owned();
    wait_for("the time in UTC", || page.texts("#events time").first() == Some(&time));

    page.wait_a_day();
    let day = at[8..10].trim_start_matches('0').to_owned();
    wait_for("the day of each time", || {
        let times = page.texts("#events time, #version time");
        times.len() > 2
            && times.iter().all(|time| time.ends_with(|last: char| last.is_ascii_digit()) && time.len() > 12)
    });
    let shown = page.texts("#events time").remove(0);
    assert!(shown.starts_with(&format!("{day} ")) && shown.ends_with(&time), "{shown}");
    page.assert_quiet(&[]);
}
