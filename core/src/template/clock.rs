//! The time that `strftime_now` tells, and how C's `strftime` writes it in the C locale.

use std::fmt::Write as _;

/// A date and a time of day, without a time zone, as clocks on walls show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CivilTime {
    /// Year of our era, 1 or more.
    pub year: i32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 60.
    pub second: u32,
    /// 0 to 999 999.
    pub microsecond: u32,
}

/// Where the time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The system's clock, in its time zone.
    #[default]
    System,
    /// Always this time.
    Fixed(CivilTime),
}

impl Clock {
    /// The time now.
    pub fn now(self) -> CivilTime {
        match self {
            Clock::System => local_time(),
            Clock::Fixed(time) => time,
        }
    }
}

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl CivilTime {
    /// Reads ISO 8601: `2025-03-07`, `2025-03-07T09:05`, `2025-03-07T09:05:00`, with a space for the `T` and
    /// fractions of a second if you like. `None` for anything else, and for days that don't exist.
    pub fn parse_iso(text: &str) -> Option<Self> {
        let (date, time) = match text.find(['T', 't', ' ']) {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, "00:00"),
        };
        let number = |text: &str, width: usize| {
            (text.len() == width && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u32>().ok()).flatten()
        };
        let mut date = date.split('-');
        let year = number(date.next()?, 4)?;
        let month = number(date.next()?, 2)?;
        let day = number(date.next()?, 2)?;
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let mut time = time.split(':');
        let hour = number(time.next()?, 2)?;
        let minute = number(time.next()?, 2)?;
        let second = time.next().map_or(Some(0), |second| number(second, 2))?;
        let digits = &fraction[..fraction.len().min(6)];
        let microsecond = number(digits, digits.len())? * 10_u32.pow(6 - digits.len() as u32);
        let time = CivilTime { year: year as i32, month, day, hour, minute, second, microsecond };
        let exists = date.next().is_none()
            && fraction.bytes().all(|b| b.is_ascii_digit())
            && year >= 1
            && (1..=12).contains(&month)
            && (1..=time.days_in_month()).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        exists.then_some(time)
    }

    fn is_leap(self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    fn days_in_month(self) -> u32 {
        match self.month {
            2 => 28 + u32::from(self.is_leap()),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Days before this one in its year.
    fn day_of_year(self) -> u32 {
        (1..self.month).map(|month| CivilTime { month, ..self }.days_in_month()).sum::<u32>() + self.day - 1
    }

    /// Days since 1970-01-01.
    fn day_number(self) -> i64 {
        let before = i64::from(self.year) - 1;
        before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) + i64::from(self.day_of_year()) - 719_162
    }

    /// 0 is Sunday.
    fn weekday(self) -> u32 {
        (self.day_number() + 4).rem_euclid(7) as u32
    }

    /// Year and week of ISO 8601.
    fn iso_week(self) -> (i32, u32) {
        // The week belongs to the year that its Thursday lies in.
        let from_monday = i64::from((self.weekday() + 6) % 7);
        let thursday = CivilTime::from_days(self.day_number() - from_monday + 3);
        (thursday.year, thursday.day_of_year() / 7 + 1)
    }

    /// Midnight of a day since 1970-01-01.
    fn from_days(days: i64) -> Self {
        // Years of 365.2425 days from a March, so that the leap day is the last: the usual civil calendar.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = (of_year - (153 * from_march + 2) / 5 + 1) as u32;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 } as u32;
        let year = (year_of_era + era * 400 + i64::from(month <= 2)) as i32;
        CivilTime { year, month, day, hour: 0, minute: 0, second: 0, microsecond: 0 }
    }

    /// The time in UTC, `seconds` after 1970-01-01.
    fn from_unix(seconds: i64, microsecond: u32) -> Self {
        let of_day = seconds.rem_euclid(86_400) as u32;
        let date = CivilTime::from_days(seconds.div_euclid(86_400));
        CivilTime { hour: of_day / 3600, minute: of_day / 60 % 60, second: of_day % 60, microsecond, ..date }
    }

    /// What Python's `datetime.strftime` gives on Linux in the C locale, with the flags `-`, `_`, `0`, `^`.
    /// There is no time zone, so `%z` and `%Z` are empty; a directive that doesn't exist stays as it is.
    pub fn strftime(self, format: &str) -> String {
        let mut out = String::new();
        self.strftime_into(format, &mut out);
        out
    }

    fn strftime_into(self, format: &str, out: &mut String) {
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let directive = &rest[at..];
            let mut chars = directive[1..].chars().peekable();
            let mut flag = None;
            let mut width = 1;
            while let Some(c) = chars.next_if(|c| "-_0^".contains(*c)) {
                flag = Some(c);
                width += 1;
            }
            let Some(letter) = chars.next() else {
                out.push_str(directive);
                return;
            };
            width += letter.len_utf8();
            if !self.directive(letter, flag, out) {
                out.push_str(&directive[..width]);
            }
            rest = &directive[width..];
        }
        out.push_str(rest);
    }

    /// Appends one directive; false if there is none of this letter.
    fn directive(self, letter: char, flag: Option<char>, out: &mut String) -> bool {
        let hour12 = (self.hour + 11) % 12 + 1;
        let monday_first = (self.weekday() + 6) % 7;
        let day_of_year = self.day_of_year();
        let mut number = |value: i64, width: usize, fill: char| {
            // Writing to a String can't fail.
            let _ = match (flag, fill) {
                (Some('-'), _) => write!(out, "{value}"),
                (Some('_'), _) | (None | Some('^'), ' ') => write!(out, "{value:width$}"),
                _ => write!(out, "{value:0width$}"),
            };
            true
        };
        match letter {
            'd' => return number(self.day.into(), 2, '0'),
            'e' => return number(self.day.into(), 2, ' '),
            'm' => return number(self.month.into(), 2, '0'),
            'Y' => return number(self.year.into(), 1, '0'),
            'y' => return number((self.year % 100).into(), 2, '0'),
            'C' => return number((self.year / 100).into(), 2, '0'),
            'H' => return number(self.hour.into(), 2, '0'),
            'k' => return number(self.hour.into(), 2, ' '),
            'I' => return number(hour12.into(), 2, '0'),
            'l' => return number(hour12.into(), 2, ' '),
            'M' => return number(self.minute.into(), 2, '0'),
            'S' => return number(self.second.into(), 2, '0'),
            'j' => return number(i64::from(day_of_year) + 1, 3, '0'),
            'u' => return number(i64::from(monday_first) + 1, 1, '0'),
            'w' => return number(self.weekday().into(), 1, '0'),
            'U' => return number(((day_of_year + 7 - self.weekday()) / 7).into(), 2, '0'),
            'W' => return number(((day_of_year + 7 - monday_first) / 7).into(), 2, '0'),
            'V' => return number(self.iso_week().1.into(), 2, '0'),
            'G' => return number(self.iso_week().0.into(), 1, '0'),
            'g' => return number((self.iso_week().0 % 100).into(), 2, '0'),
            'f' => {
                let _ = write!(out, "{:06}", self.microsecond);
                return true;
            }
            's' => {
                let of_day = i64::from(self.hour * 3600 + self.minute * 60 + self.second);
                return number(self.day_number() * 86_400 + of_day, 1, '0');
            }
            _ => {}
        }
        let start = out.len();
        match letter {
            'A' => out.push_str(DAYS[self.weekday() as usize]),
            'a' => out.push_str(&DAYS[self.weekday() as usize][..3]),
            'B' => out.push_str(self.month_name()),
            'b' | 'h' => out.push_str(&self.month_name()[..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => out.push_str(if self.hour < 12 { "am" } else { "pm" }),
            'c' => self.strftime_into("%a %b %e %H:%M:%S %Y", out),
            'D' | 'x' => self.strftime_into("%m/%d/%y", out),
            'F' => self.strftime_into("%Y-%m-%d", out),
            'r' => self.strftime_into("%I:%M:%S %p", out),
            'R' => self.strftime_into("%H:%M", out),
            'T' | 'X' => self.strftime_into("%H:%M:%S", out),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            'z' | 'Z' => {}
            _ => return false,
        }
        if flag == Some('^') {
            let upper = out[start..].to_uppercase();
            out.truncate(start);
            out.push_str(&upper);
        }
        true
    }

    fn month_name(self) -> &'static str {
        // A month outside 1..=12 can only be built by hand; it shows as the nearest.
        MONTHS[self.month.clamp(1, 12) as usize - 1]
    }
}

/// The system's clock in its time zone; UTC where the zone can't be told.
/// An operating system's call: it moves to the crate's `os` module when that lands.
fn local_time() -> CivilTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    #[cfg(unix)]
    if let Some(time) = unix_local_time(seconds, since.subsec_micros()) {
        return time;
    }
    CivilTime::from_unix(seconds, since.subsec_micros())
}

#[cfg(unix)]
fn unix_local_time(seconds: i64, microsecond: u32) -> Option<CivilTime> {
    let seconds = libc::time_t::try_from(seconds).ok()?;
    let mut fields = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to live values of the right types, and localtime_r writes nothing but `fields`.
    let filled = unsafe { libc::localtime_r(&seconds, fields.as_mut_ptr()) };
    if filled.is_null() {
        return None;
    }
    // SAFETY: `tm` is plain data, zeroed at first and filled by a call that succeeded.
    let fields = unsafe { fields.assume_init() };
    let part = |value: libc::c_int| u32::try_from(value).ok();
    Some(CivilTime {
        year: fields.tm_year + 1900,
        month: part(fields.tm_mon)? + 1,
        day: part(fields.tm_mday)?,
        hour: part(fields.tm_hour)?,
        minute: part(fields.tm_min)?,
        second: part(fields.tm_sec)?,
        microsecond,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_text_is_read_or_refused() {
        let time = CivilTime::parse_iso("2025-03-07T09:05:00").unwrap();
        assert_eq!((time.year, time.month, time.day, time.hour, time.minute, time.second), (2025, 3, 7, 9, 5, 0));
        assert_eq!(CivilTime::parse_iso("2025-03-07 09:05:01.25").unwrap().microsecond, 250_000);
        assert_eq!(CivilTime::parse_iso("2024-02-29").unwrap().day, 29);
        for bad in [
            "",
            "2025",
            "2025-02-29",
            "2025-13-01",
            "2025-03-07T24:00",
            "2025-03-07T09",
            "2025-3-7",
            "x-y-z",
            "2025-03-07T09:05:00é",
            "２025-03-07",
        ] {
            assert_eq!(CivilTime::parse_iso(bad), None, "{bad}");
        }
    }

    #[test]
    fn days_count_both_ways() {
        assert_eq!(CivilTime::parse_iso("1970-01-01").unwrap().day_number(), 0);
        for days in (-700_000..700_000).step_by(137) {
            let time = CivilTime::from_days(days);
            assert_eq!(time.day_number(), days, "{time:?}");
        }
        assert_eq!(CivilTime::from_unix(1_741_338_300, 0), CivilTime::parse_iso("2025-03-07T09:05:00").unwrap());
    }

    #[test]
    fn the_system_tells_a_time_of_this_era() {
        assert!(Clock::System.now().year >= 2024);
    }
}
