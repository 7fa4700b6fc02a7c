//! Which connection of a queue is expected to bring something next.
//!
//! Where connections take turns, the one that is expected can be asked alone, which is one system
//! call instead of two.

/// An expectation must have been right this often, of late, to be acted on: two misses cost what
/// four hits save.
const TRUSTED: u32 = 4;

#[derive(Debug, Default)]
pub struct NextSource {
    /// Which two came last after the one of that place. Two, since acknowledgements and messages
    /// take turns as well.
    after: Vec<[usize; 2]>,
    last: usize,
    /// How often, of late, one of them did.
    right: u32,
    /// How often the expected ones were asked in vain.
    misses: u32,
}

impl NextSource {
    /// There are `more` sources now.
    pub fn resize(&mut self, more: usize) {
        self.after.resize(self.after.len() + more, [0; 2]);
        self.right = 0;
    }

    /// There are `n` other sources now.
    pub fn reset(&mut self, n: usize) {
        *self = NextSource::default();
        self.resize(n);
    }

    /// Which source is to be asked next; `None` if nothing is expected. A single one always is.
    pub fn expected(&self) -> Option<usize> {
        if self.after.len() == 1 {
            return Some(0);
        }
        let after = self.after.get(self.last)?;
        let turn = self.misses as usize % after.len();
        (self.right >= TRUSTED).then(|| after[turn])
    }

    /// That source had something.
    pub fn came(&mut self, source: usize) {
        if let Some(after) = self.after.get_mut(self.last) {
            if after.contains(&source) {
                self.right = (self.right + 1).min(2 * TRUSTED);
            } else {
                self.right = self.right.saturating_sub(TRUSTED);
                *after = [source, after[0]];
            }
        }
        self.last = source;
        self.misses = 0;
    }

    /// The expected source had nothing.
    pub fn missed(&mut self) {
        self.misses = self.misses.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the sources that come in that order were expected, alone or as one of two.
    fn hits(sources: usize, order: impl Iterator<Item = usize>) -> usize {
        let mut next = NextSource::default();
        next.reset(sources);
        let mut hits = 0;
        for source in order {
            let first = next.expected();
            next.missed();
            let second = next.expected();
            if [first, second].contains(&Some(source)) {
                hits += 1;
            }
            next.came(source);
        }
        hits
    }

    #[test]
    fn sources_that_take_turns_are_expected() {
        // One round to see the order, and four right guesses before the first that counts.
        assert_eq!(hits(16, (0..16 * 10).map(|i| i % 16)), 16 * 10 - 16 - 4);
    }

    #[test]
    fn two_that_follow_one_are_both_expected() {
        // 0 1 0 2 0 1 0 2: after 0 comes 1 or 2.
        let order = (0..400).map(|i| if i % 2 == 0 { 0 } else { 1 + i / 2 % 2 });
        assert!(hits(3, order) > 380);
    }

    #[test]
    fn chance_is_not_trusted() {
        let mut rng = fastrand::Rng::with_seed(1);
        let order: Vec<_> = (0..10_000).map(|_| rng.usize(..64)).collect();
        assert!(hits(64, order.into_iter()) < 100);
    }

    #[test]
    fn a_single_source_is_always_expected() {
        assert_eq!(hits(1, [0; 10].into_iter()), 10);
    }

    #[test]
    fn a_source_that_is_gone_is_not_expected() {
        let mut next = NextSource::default();
        next.reset(3);
        for source in (0..30).map(|i| i % 3) {
            next.came(source);
        }
        assert!(next.expected().is_some());
        next.reset(2);
        assert_eq!(next.expected(), None);
        next.reset(0);
        assert_eq!(next.expected(), None);
    }
}
