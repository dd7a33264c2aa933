//! Of an operator, who takes no part.

use super::*;

/// The record that an operator means to change.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none: what was found, and what to do.
pub fn present(view: &View) -> Result<&Record, String> {
    match &view.lock {
        Lock::Record { record, .. } => Ok(record),
        Lock::Missing | Lock::Single(_) => Err(format!(
            "there is no semaphore at {}: the key {} does not exist; check the prefix, and that the token may read there",
            view.prefix(),
            view.lock_key()
        )),
        Lock::Conflict { found, .. } => Err(no_semaphore(view, found)),
    }
}

/// The transaction that changes the limit and gives on what that frees; `None` where there is nothing to do. Where more
/// slots become free than one transaction can give on, others follow from the view that it leads to.
///
/// # Errors
///
/// What lies under `.lock` is no semaphore, or there is none: what was found, and what to do.
pub fn set_limit(view: &View, limit: u32, wall: &str, now: Moment) -> Result<Option<Write>, String> {
    let mut draft = Draft::new(view, present(view)?.clone(), wall, None);
    draft.record.limit = limit;
    let line = line::line(view, None);
    draft.fill(&line, &[], None, now);
    if draft.changes() {
        draft.name_next(&line);
    }
    Ok(draft.write(false))
}
