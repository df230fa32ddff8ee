//! The page of `--html`: what is written in it, and what a browser makes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "html/browser.rs"]
mod browser;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const STYLE: &str = include_str!("../src/html/style.css");

/// A directory of this test alone, empty.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("html").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Writes the page of a model into `dir`.
fn page(model: &Path, dir: &Path) -> PathBuf {
    let file = dir.join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"))
        .arg(model)
        .args(["--memory", "80GiB", "--slots", "4", "--context", "65536", "--html"])
        .arg(&file)
        .env_remove("PLIMSOLL_MEMORY_LIMIT")
        .output()
        .unwrap();
    assert!(file.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/configs/nemotron-3-nano-30b-a3b.json")
}

/// The values of an attribute, in order.
fn values<'p>(page: &'p str, attribute: &str) -> Vec<&'p str> {
    let start = format!(" {attribute}=\"");
    page.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn check_document(page: &str) {
    assert!(page.len() <= 60_000, "{} bytes", page.len());
    assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">"));
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none';"));
    let quiet = page.to_lowercase();
    for outside in
        ["http:", "https:", " src=", "@import", "url(", "<script", "<iframe", " onload=", " onerror="]
    {
        assert!(!quiet.contains(outside), "{outside}");
    }
    assert_eq!(values(page, "href"), ["data:,"]);
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'));

    let ids = values(page, "id");
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{ids:?}");
    for named in values(page, "aria-labelledby").iter().flat_map(|ids| ids.split(' ')) {
        assert!(ids.contains(&named), "{named}");
    }
    let pictures: Vec<&str> =
        page.split("<svg ").skip(1).map(|s| s.split("</svg>").next().unwrap()).collect();
    assert!(!pictures.is_empty());
    for picture in pictures {
        let head = picture.split('>').next().unwrap();
        assert!(head.contains("role=\"img\"") && head.contains("aria-labelledby="), "{head}");
        assert_eq!(picture.matches("<title id=").count(), 1);
        assert_eq!(picture.matches("<desc id=").count(), 1);
    }
    let tables: Vec<&str> =
        page.split("<table>").skip(1).map(|t| t.split("</table>").next().unwrap()).collect();
    assert!(!tables.is_empty());
    for table in tables {
        assert!(table.trim_start().starts_with("<caption>"), "{table}");
        let headers = table.matches("<th ").count();
        assert!(headers > 0 && !table.contains("<th>"));
        assert_eq!(
            headers,
            table.matches("<th scope=\"row\">").count() + table.matches("<th scope=\"col\">").count()
        );
    }
}

#[test]
fn the_page_stands_alone_and_names_all_it_shows() {
    let file = page(&config(), &scratch("plain"));
    check_document(&std::fs::read_to_string(file).unwrap());
}

#[test]
fn hostile_names_stay_text() {
    let dir = scratch("hostile");
    // What a file system takes: no slash, 255 bytes.
    let model = dir.join("<script>alert('1')<img src=x onerror=\"a()\">&\u{7}\u{1b}[31m");
    std::fs::create_dir_all(&model).unwrap();
    let text = std::fs::read_to_string(config()).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let long = format!("\"><script>alert(2)</script>&'\u{1}{}", "y".repeat(10_240));
    config["_name_or_path"] = long.clone().into();
    config["name"] = long.into();
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let text = std::fs::read_to_string(page(&model, &dir)).unwrap();
    // The words may stand there, their brackets and quotes may not: so no element and no attribute comes of them.
    assert!(
        text.contains("&lt;script&gt;") && text.contains("&#39;") && text.contains("&quot;"),
        "{}",
        &text[..900]
    );
    assert!(!text.contains("<img") && !text.contains("<script"));
    assert!(!text.contains(&"y".repeat(401)));
    assert!(text.len() <= 60_000, "{} bytes", text.len());
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
}

/// `--name:#rrggbb` of a scheme.
fn color(dark: bool, name: &str) -> [u8; 3] {
    let (light, other) = STYLE.split_once("@media(prefers-color-scheme:dark)").unwrap();
    let scheme = if dark { other } else { light };
    let hex = scheme.split_once(&format!("--{name}:#")).unwrap().1;
    let hex = &hex[..hex.find([';', '}']).unwrap()];
    let digits: Vec<u8> = hex.chars().map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap()).collect();
    match *digits {
        [r, g, b] => [r * 17, g * 17, b * 17],
        [r, rr, g, gg, b, bb] => [r * 16 + rr, g * 16 + gg, b * 16 + bb],
        _ => panic!("{name}: {hex}"),
    }
}

/// Contrast as WCAG 2 has it.
fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
    let luminance = |c: [u8; 3]| {
        let [r, g, b] = c.map(|v| {
            let v = f64::from(v) / 255.0;
            if v <= 0.04045 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05
    };
    let (a, b) = (luminance(a), luminance(b));
    a.max(b) / a.min(b)
}

#[test]
fn text_stands_out_in_both_schemes() {
    assert!((contrast([0; 3], [255; 3]) - 21.0).abs() < 1e-9);
    for dark in [false, true] {
        for (ink, ground) in ["ink", "soft", "bad", "good"].iter().flat_map(|i| [(i, "ground"), (i, "card")])
        {
            let ratio = contrast(color(dark, ink), color(dark, ground));
            assert!(ratio >= 4.5, "dark {dark}: {ink} on {ground}: {ratio:.2}");
        }
        for part in ["weights", "kv", "recurrent", "activations", "io", "retained"] {
            let ratio = contrast(color(dark, part), color(dark, "card"));
            assert!(ratio >= 3.0, "dark {dark}: {part}: {ratio:.2}");
        }
    }
}

#[test]
fn a_browser_shows_it_whole_in_both_schemes_and_widths() {
    let Some(browser) = browser::find() else { return };
    let dir = scratch("browser");
    let file = page(&config(), &dir);
    for (width, dark) in [(360, false), (360, true), (1280, false), (1280, true)] {
        // No window of a desktop is as narrow as a phone: the page stands in a frame of that width.
        let (shown, frame) =
            (dir.join(format!("{width}.html")), format!("width:{width}px;height:2400px;border:0"));
        let harness = format!(
            "<!doctype html><html lang=en><meta name=color-scheme content=\"light dark\"><title>frame</title><body style=\"margin:0\"><iframe src=page.html style=\"{frame}\"></iframe>"
        );
        std::fs::write(&shown, harness).unwrap();
        let picture =
            browser::draw(&browser, &dir.join(format!("{width}-{dark}")), &shown, width.max(600), dark);
        let count = |c: [u8; 3]| picture.pixels().filter(|p| p.0 == c).count();
        assert_eq!(picture.get_pixel(2, 2).0, color(dark, "ground"), "{width} dark {dark}");
        assert!(count(color(dark, "weights")) > 500, "{width} dark {dark}: no bar");
        assert!(count(color(dark, "card")) > 10_000, "{width} dark {dark}: no card");
        assert_eq!(count(color(!dark, "weights")), 0, "{width} dark {dark}: colours of the other scheme");
    }
    let built = browser::open(&browser, &dir.join("dom"), &file, &["--dump-dom"]).out;
    assert!(built.contains("<svg") && built.trim_end().ends_with("</html>"));
}

#[test]
fn nothing_is_wider_than_a_phone() {
    let Some(browser) = browser::find() else { return };
    let dir = scratch("phone");
    let text = std::fs::read_to_string(page(&config(), &dir)).unwrap();
    let policy = text.split("<meta http-equiv").nth(1).unwrap().split('\n').next().unwrap();
    // A copy that may run a script, in a frame as wide as a phone: it tells its width to the page around it.
    let told = "<script>onload=()=>{const e=document.documentElement;parent.postMessage(innerWidth+'/'+e.scrollWidth,'*')}</script>";
    let copy = text.replace(&format!("<meta http-equiv{policy}"), told);
    assert!(!copy.contains("Content-Security-Policy"));
    std::fs::write(dir.join("copy.html"), copy).unwrap();
    let frame = dir.join("frame.html");
    let around = "<!doctype html><title>none</title><body><script>onmessage=e=>{document.title='width '+e.data}</script><iframe src=copy.html style=\"width:360px;height:2400px;border:0\"></iframe>";
    std::fs::write(&frame, around).unwrap();
    let built =
        browser::open(&browser, &dir.join("run"), &frame, &["--dump-dom", "--virtual-time-budget=2000"]).out;
    assert!(built.contains("<title>width 360/360</title>"), "{}", &built[..built.len().min(300)]);
}
