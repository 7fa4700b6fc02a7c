//! Acknowledgements and timers.
