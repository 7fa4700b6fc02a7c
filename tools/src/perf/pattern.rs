//! What is written, so that it can be told afterwards whether it has come.

/// What the bytes of one operation are made of.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    pub seed: u64,
    pub connection: usize,
    /// The operation's number on its connection.
    pub number: u64,
}

impl Pattern {
    /// Fills `bytes`. Both sides make the same ones.
    pub fn fill(self, bytes: &mut [u8]) {
        let mut state = self
            .seed
            .wrapping_add((self.connection as u64) << 48)
            .wrapping_add(self.number.wrapping_mul(0xd134_2543_de82_ef95));
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64: well mixed from the first number on.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// Compares: None if they are the same, else where they are not.
    #[must_use]
    pub fn difference(self, bytes: &[u8], scratch: &mut Vec<u8>) -> Option<usize> {
        scratch.resize(bytes.len(), 0);
        self.fill(scratch);
        (scratch != bytes).then(|| {
            let pairs = scratch.iter().zip(bytes);
            pairs
                .take_while(|(expected, seen)| expected == seen)
                .count()
        })
    }

    /// The number that goes with an operation that has one.
    #[must_use]
    pub fn imm(self) -> u32 {
        self.number as u32
    }
}

/// What a check of contents has come to.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    pub operations: u64,
    pub mismatches: u64,
    /// What the first mismatch was.
    pub first: Option<String>,
}

impl Checked {
    /// Notes a check, with what was wrong.
    pub fn note(&mut self, wrong: Option<String>) {
        self.operations += 1;
        if let Some(wrong) = wrong {
            self.mismatches += 1;
            self.first.get_or_insert(wrong);
        }
    }

    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.mismatches += other.mismatches;
        if self.first.is_none() {
            self.first = other.first;
        }
    }
}
