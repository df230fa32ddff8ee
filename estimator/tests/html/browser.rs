//! Chromium without a window, and what it says, builds and draws.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What one call gave.
pub struct Said {
    pub out: String,
    pub err: String,
}

/// The browser, or nothing where the machine has none and does not have to.
pub fn find() -> Option<PathBuf> {
    let asked = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
    let starts = |name: &PathBuf| {
        let tried = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let found = asked.into_iter().chain(names).find(starts);
    if found.is_none() {
        let required = std::env::var("PLIMSOLL_REQUIRE_CHROMIUM").is_ok_and(|v| v == "1");
        assert!(!required, "no Chromium: `scripts/setup.sh browser` installs it");
        eprintln!("skipped: no chromium, chromium-browser or google-chrome (CHROMIUM names another)");
    }
    found
}

/// Opens `page` with a profile of its own; kills the browser where it does not end.
pub fn open(browser: &Path, dir: &Path, page: &Path, flags: &[&str]) -> Said {
    std::fs::create_dir_all(dir).unwrap();
    let (out, err) = (dir.join("stdout"), dir.join("stderr"));
    let mut child = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--enable-logging=stderr", "--v=0", "--force-device-scale-factor=1"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(flags)
        .arg(format!("file://{}", page.display()))
        // Into files: a full pipe that nobody reads would stop it.
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let read = |file| String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
    let said = Said { out: read(&out), err: read(&err) };
    assert!(status.is_some_and(|s| s.success()), "{status:?}: {}", said.err);
    assert!(!said.err.contains("Page load failed"), "{}", said.err);
    let console: Vec<&str> = said.err.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:#?}");
    said
}

/// The pixels of `page` in a window of `width` times 2400.
pub fn draw(browser: &Path, dir: &Path, page: &Path, width: u32, dark: bool) -> image::RgbImage {
    let picture = dir.join("page.png");
    let flags = [
        format!("--window-size={width},2400"),
        // Blink's own names: 0 is dark, 1 is light.
        format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)),
        format!("--screenshot={}", picture.display()),
    ];
    open(browser, dir, page, &flags.each_ref().map(String::as_str));
    image::open(picture).unwrap().into_rgb8()
}
