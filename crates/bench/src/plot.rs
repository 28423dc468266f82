//! Draws an SVG of line charts with error bands: a few panels side by side with a common y axis and legend.

use std::fmt::Write;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// The line's name in the legend.
    pub name: String,
    /// The points in ascending x: x, y, and half the height of the error band around y.
    pub points: Vec<[f64; 3]>,
}

/// One panel of a plot.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The label of the x axis.
    pub label: String,
    /// The lines, in the order of the legend. Every panel must have the same lines.
    pub series: Vec<Series>,
}

/// Colours of lines: the palette of Okabe and Ito, safe for colour-blind readers, and two more.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a6d00", "#7a4fb5"];

/// The width of a panel in pixels; the next constant is its height.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 300.0;
/// Margins in pixels, for the tick labels of the y axis, the title, the space between panels, and the legend.
const LEFT: f64 = 62.0;
const TOP: f64 = 34.0;
const GAP: f64 = 36.0;
const LEGEND: f64 = 150.0;

/// Draws the plot as SVG. `y` is the label of the y axis, whose range is 0 to `most`.
pub fn svg(title: &str, y: &str, most: f64, panels: &[Panel]) -> String {
    let width = LEFT + panels.len() as f64 * (WIDTH + GAP) + LEGEND;
    let height = TOP + HEIGHT + 48.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for (i, panel) in panels.iter().enumerate() {
        draw(&mut out, LEFT + i as f64 * (WIDTH + GAP), most, panel, i == 0);
    }
    let middle = TOP + HEIGHT / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">{}</text>",
        escaped(y)
    );
    let x = LEFT + panels.len() as f64 * (WIDTH + GAP) - GAP + 14.0;
    for (i, series) in panels.first().map_or(&[][..], |p| &p.series).iter().enumerate() {
        let (y, colour) = (TOP + 10.0 + 18.0 * i as f64, COLOURS[i % COLOURS.len()]);
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            x + 18.0,
            x + 24.0,
            y + 4.0,
            escaped(&series.name)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, left: f64, most: f64, panel: &Panel, labelled: bool) {
    let far = panel.series.iter().flat_map(|s| s.points.iter().map(|p| p[0])).fold(0.0, f64::max);
    let far = if far > 0.0 { far } else { 1.0 };
    let (bottom, right) = (TOP + HEIGHT, left + WIDTH);
    let x = |value: f64| left + value / far * WIDTH;
    let y = |value: f64| bottom - value.clamp(0.0, most) / most * HEIGHT;
    for tick in ticks(most) {
        let at = y(tick);
        let _ = writeln!(out, "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>");
        if labelled {
            let (at, from) = (at + 4.0, left - 6.0);
            let _ = writeln!(out, "<text x=\"{from}\" y=\"{at:.1}\" text-anchor=\"end\">{}</text>", number(tick));
        }
    }
    for tick in ticks(far) {
        let (at, below) = (x(tick), bottom + 16.0);
        let _ = writeln!(out, "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#eeeeee\"/>");
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", number(tick));
    }
    let _ = writeln!(
        out,
        "<rect x=\"{left}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#888888\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        left + WIDTH / 2.0,
        bottom + 36.0,
        escaped(&panel.label)
    );
    for (i, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path = |points: &mut dyn Iterator<Item = [f64; 2]>| -> String {
            points.map(|[a, b]| format!("{:.1},{:.1}", x(a), y(b))).collect::<Vec<_>>().join(" ")
        };
        let upper = series.points.iter().map(|p| [p[0], p[1] + p[2]]);
        let lower = series.points.iter().rev().map(|p| [p[0], p[1] - p[2]]);
        let band = path(&mut upper.chain(lower));
        let line = path(&mut series.points.iter().map(|p| [p[0], p[1]]));
        let _ = writeln!(out, "<polygon points=\"{band}\" fill=\"{colour}\" fill-opacity=\"0.12\"/>");
        let _ = writeln!(out, "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>");
    }
}

/// About five round numbers from 0 up to `most`.
#[allow(clippy::disallowed_methods)]
fn ticks(most: f64) -> Vec<f64> {
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&s| s >= rough * 0.999).unwrap_or(rough);
    (0..).map(|i| f64::from(i) * step).take_while(|&t| t <= most * 1.001).collect()
}

/// The number with as many decimals as an axis label needs.
fn number(x: f64) -> String {
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_ticks_are_round_numbers() {
        assert_eq!(ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(7.3), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(
            ticks(0.25).iter().map(|&t| number(t)).collect::<Vec<_>>(),
            ["0", "0.05", "0.1", "0.15", "0.2", "0.25"]
        );
        assert_eq!(number(1200.0), "1200");
    }

    #[test]
    fn a_point_is_drawn_at_its_coordinates() {
        let series = |name: &str| Series { name: name.into(), points: vec![[0.0, 0.0, 0.0], [10.0, 50.0, 25.0]] };
        let panels = [Panel { label: "x < y".into(), series: vec![series("a"), series("b & c")] }];
        let svg = svg("t", "y", 100.0, &panels);
        let (right, half, band) = (LEFT + WIDTH, TOP + HEIGHT / 2.0, TOP + HEIGHT / 4.0);
        assert!(
            svg.contains(&format!("<polyline points=\"{LEFT:.1},{:.1} {right:.1},{half:.1}\"", TOP + HEIGHT)),
            "{svg}"
        );
        assert!(svg.contains(&format!("{right:.1},{band:.1} {right:.1},{:.1}", TOP + 0.75 * HEIGHT)), "{svg}");
        assert!(svg.contains("b &amp; c") && svg.contains("x &lt; y"));
        assert_eq!(svg.matches("<polyline").count(), 2);
    }
}
