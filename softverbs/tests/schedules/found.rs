//! Schedules that once failed, each with what was wrong.
