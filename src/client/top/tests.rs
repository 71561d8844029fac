//! Screens as users see them.
