use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// A member of a configuration, which any thread may read and set.
pub struct Setting<T>(AtomicU32, PhantomData<T>);

/// What a setting can hold.
pub trait Value: Copy {
    fn to_bits(self) -> u32;
    fn from_bits(bits: u32) -> Self;
}

impl Value for u32 {
    fn to_bits(self) -> u32 {
        self
    }

    fn from_bits(bits: u32) -> Self {
        bits
    }
}

impl Value for i32 {
    fn to_bits(self) -> u32 {
        self.cast_unsigned()
    }

    fn from_bits(bits: u32) -> Self {
        bits.cast_signed()
    }
}

impl Value for bool {
    fn to_bits(self) -> u32 {
        self.into()
    }

    fn from_bits(bits: u32) -> Self {
        bits != 0
    }
}

impl<T: Value> Setting<T> {
    pub fn new(value: T) -> Self {
        Setting(AtomicU32::new(value.to_bits()), PhantomData)
    }

    #[inline(always)]
    pub fn get(&self) -> T {
        // Relaxed: it is a number, and points to nothing that another thread has written.
        T::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, value: T) {
        // Relaxed: as in `get`.
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}
