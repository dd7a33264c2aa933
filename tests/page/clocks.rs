//! What runs on although nothing is told.

use crate::browser::Browser;
use crate::consul::Consul;
use crate::process::Lodger;
use crate::wait_for;

const ONE: &str = "session: {ttl: 30s}\nsemaphores: [{name: writers, prefix: service/writers, limit: 1}]";

/// What the clocks of the page show.
#[derive(Debug)]
struct Clocks {
    lease: u64,
    bar: f64,
    waiting: u64,
}

impl Clocks {
    fn of(page: &mut Browser) -> Option<Self> {
        let text = page.text();
        let style = page.attribute("#bar i", "style");
        let bar = style.split_once("scaleX(")?.1.split_once(')')?.0.parse().ok()?;
        Some(Self { lease: seconds(&text, "Lease: ")?, bar, waiting: seconds(&text, "waiting for ")? })
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
    let mut told = text.split_once(words)?.1.split_whitespace();
    let mut time = None;
    while let (Some(Ok(number)), Some(unit)) = (told.next().map(str::parse::<u64>), told.next()) {
        let unit = match unit {
            "s" => 1,
            "min" => 60,
            _ => break,
        };
        time = Some(time.unwrap_or_default() + number * unit);
    }
    time
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
        now.lease < from.lease && now.bar < from.bar && now.waiting > from.waiting
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
