//! What commands have written down of their lives, and what must hold of them together.

use std::collections::BTreeMap;

/// One life on one slot or several, in seconds since boot.
#[derive(Clone, Debug, PartialEq)]
pub struct Lived {
    /// Whose, for people.
    pub name: String,
    /// When it was surely alive: from its first entry to its last.
    pub first: f64,
    pub last: f64,
    /// From when on it may overlap others, since somebody has taken its slot away behind its back.
    pub taken_away: Option<f64>,
    /// How many slots it took.
    pub slots: u32,
    /// The number of the first of these, where it was told.
    pub slot: Option<u32>,
    /// Its fencing token.
    pub token: u64,
}

impl Lived {
    /// Until when it had a right to its slots.
    fn rightful_until(&self) -> f64 {
        self.taken_away.map_or(self.last, |at| self.last.min(at))
    }
}

/// How many slots were lived on at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overlap {
    pub most: u32,
    /// When that began.
    pub at: f64,
    /// How long more than the limit were, all in all.
    pub too_many_for: f64,
}

/// What is wrong with these lives on a semaphore of that limit; empty where nothing is.
pub fn faults(lives: &[Lived], limit: u32) -> Vec<String> {
    let mut found = Vec::new();
    let rightful = overlap(lives, limit, Lived::rightful_until);
    if rightful.most > limit {
        let Overlap { most, at, .. } = rightful;
        let there: Vec<_> = lives.iter().filter(|one| one.first <= at && at < one.rightful_until()).collect();
        found.push(format!("{most} of {limit} slots were lived on at {at:.2}: {there:#?}"));
    }
    let mut by_slot: BTreeMap<u32, Vec<&Lived>> = BTreeMap::new();
    for one in lives {
        if let Some(slot) = one.slot {
            by_slot.entry(slot).or_default().push(one);
        }
    }
    for (slot, mut lives) in by_slot {
        lives.sort_by(|a, b| a.first.total_cmp(&b.first));
        for pair in lives.windows(2) {
            if pair[0].token >= pair[1].token {
                found.push(format!("the tokens on slot {slot} do not grow: {pair:#?}"));
            }
            if pair[0].rightful_until() > pair[1].first {
                found.push(format!("two lived on slot {slot} at once: {pair:#?}"));
            }
        }
    }
    found
}

/// The most slots that were lived on at once, where each life ends when `until` says.
pub fn overlap(lives: &[Lived], limit: u32, until: impl Fn(&Lived) -> f64) -> Overlap {
    let mut steps = Vec::new();
    for one in lives.iter().filter(|one| one.first < until(one)) {
        steps.push((one.first, i64::from(one.slots)));
        steps.push((until(one), -i64::from(one.slots)));
    }
    // Who ends in the instant in which another begins has ended before.
    steps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut overlap = Overlap::default();
    let (mut now, mut since) = (0, 0.0);
    for (at, step) in steps {
        if now > i64::from(limit) {
            overlap.too_many_for += at - since;
        }
        (now, since) = (now + step, at);
        if now > i64::from(overlap.most) {
            overlap.most = u32::try_from(now).unwrap();
            overlap.at = at;
        }
    }
    overlap
}
