//! Stop strings matched over token borders.
