package main

import (
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgsvg" // so that Save can write .svg
)

// A question is one that users who choose a lock have. In its chart, each engine is a line, and
// each lock a mark on it.
type question struct {
	file, title, axis string
	column            string
	label             func(float64) string
	tables            map[string]string // by page, titles of tables that do not begin with begins
	begins            string            // beginning of the other titles
}

const ours = "leasehold"

// engines lists the pages from top to bottom, with the names of the engines.
var engines = []struct{ page, name string }{
	{"redis", "Redis"}, {"memcached", "memcached"}, {"postgresql", "PostgreSQL"}, {"mariadb", "MariaDB"}, {"sqlite", "SQLite"},
	{"nats", "NATS"}, {"etcd", "etcd"}, {"zookeeper", "ZooKeeper"},
}

var questions = []question{
	{
		file: "alone", title: "How fast is one lock, taken and given back alone?", axis: "time of a cycle, median; shorter is better",
		column: "p50", label: seconds, begins: "One goroutine, own key", tables: map[string]string{"redis": "One goroutine, own key, a processor each"},
	},
	{
		file: "many", title: "How many cycles do 64 goroutines get done, each with a name of its own?", axis: "cycles a second; more is better",
		column: "cycles/s", label: plain, begins: "64 goroutines, own keys",
	},
	{
		file: "gap", title: "How soon does the next one get it, in another process?", axis: "from the release to the waiter's return, median; shorter is better",
		column: "p50", label: seconds, begins: "Gap from release to the waiter's return in another process",
	},
	{
		file: "held", title: "What do 10,000 leases cost their process, for 20 seconds?", axis: "processor time; less is better",
		column: "CPU", label: seconds, begins: "10,000 leases held",
	},
}

// drawAll draws the charts of the pages in from to files in to.
func drawAll(from, to string) error {
	for _, q := range questions {
		p, lines, err := q.plot(from)
		if err != nil {
			return fmt.Errorf("%s: %w", q.file, err)
		}
		if err := p.Save(9*vg.Inch, vg.Length(lines)*0.5*vg.Inch+1.1*vg.Inch, filepath.Join(to, q.file+".svg")); err != nil {
			return err
		}
	}
	return drawCurves(from, to)
}

// A mark is the figure of one lock.
type mark struct {
	lock string
	x    float64
}

func (q *question) marks(folder, page string) (all []mark, err error) {
	begins := q.begins
	if other, ok := q.tables[page]; ok {
		begins = other
	}
	t, err := find(folder, page, begins)
	if err != nil {
		return nil, nil // not every engine answers every question
	}
	column, err := t.column(q.column)
	if err != nil {
		return nil, err
	}
	leases := slices.Index(t.columns, "leases") // a lock that cannot hold so many leases is left out
	for _, row := range t.rows {
		if lock := row[0]; shown(lock) && column < len(row) && (leases < 0 || row[leases] == "10000") {
			if x, ok := figure(row[column]); ok {
				all = append(all, mark{lock, x})
			}
		}
	}
	return all, nil
}

// shown reports whether a lock is in the charts. Variants are only in the tables.
func shown(lock string) bool {
	return lock == ours || !strings.Contains(lock, ours) && !strings.Contains(lock, "…") && !strings.Contains(lock, "sections of")
}

var (
	accent = color.RGBA{0x0b, 0x6e, 0x4f, 0xff}
	muted  = color.RGBA{0x6b, 0x72, 0x80, 0xff}
	faint  = color.RGBA{0xe5, 0xe7, 0xeb, 0xff}
)

// plot returns the chart and the number of its lines.
func (q *question) plot(folder string) (*plot.Plot, int, error) {
	p := newPlot(q.title)
	p.X.Label.Text = q.axis
	p.X.Scale = plot.LogScale{}
	var names []string
	least, most := math.Inf(1), 0.0
	var own, others plotter.XYs
	var named []string // names of the others
	for _, e := range slices.Backward(engines) {
		marks, err := q.marks(folder, e.page)
		if err != nil {
			return nil, 0, err
		}
		if len(marks) == 0 {
			continue
		}
		y := float64(len(names))
		names = append(names, e.name)
		slices.SortFunc(marks, func(a, b mark) int { return cmp.Compare(a.x, b.x) })
		for _, m := range marks {
			at := plotter.XY{X: m.x, Y: y}
			least, most = min(least, m.x), max(most, m.x)
			if m.lock == ours {
				own = append(own, at)
				continue
			}
			others = append(others, at)
			named = append(named, m.lock)
		}
	}
	p.NominalY(names...)
	p.X.Min, p.X.Max = least/1.6, most*1.6
	labels := beside(others, named, math.Log(p.X.Max/p.X.Min))
	p.Y.Min, p.Y.Max = -0.6, float64(len(names))-0.4
	p.X.Tick.Marker = ticks(q.label)
	ourMarks, err := plotter.NewScatter(own)
	if err != nil {
		return nil, 0, err
	}
	ourMarks.GlyphStyle = draw.GlyphStyle{Color: accent, Radius: vg.Points(5), Shape: draw.CircleGlyph{}}
	theirMarks, err := plotter.NewScatter(others)
	if err != nil {
		return nil, 0, err
	}
	theirMarks.GlyphStyle = draw.GlyphStyle{Color: muted, Radius: vg.Points(3.5), Shape: draw.TriangleGlyph{}}
	names_, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, 0, err
	}
	for i := range names_.TextStyle {
		names_.TextStyle[i].Font.Size, names_.TextStyle[i].Color, names_.TextStyle[i].XAlign = vg.Points(8), muted, text.XCenter
	}
	p.Add(theirMarks, names_, ourMarks)
	p.Legend.Add("Leasehold", ourMarks)
	p.Legend.Add("others", theirMarks)
	return p, len(names), nil
}

// beside returns labels above and below points. It places them so that labels of one line do not
// overlap on an axis of this length.
func beside(points plotter.XYs, names []string, axis float64) (all plotter.XYLabels) {
	const letter = 1.0 / 125 // as a part of the axis
	ends := map[float64]float64{}
	for i, point := range points {
		half := letter * axis * float64(len(names[i])) / 2
		at := point.Y
		for _, level := range []float64{0.17, -0.33, 0.36, -0.52} {
			at = point.Y + level
			if end, taken := ends[at]; !taken || end < math.Log(point.X)-half {
				break
			}
		}
		ends[at] = math.Log(point.X) + half
		all.XYs, all.Labels = append(all.XYs, plotter.XY{X: point.X, Y: at}), append(all.Labels, names[i])
	}
	return all
}

func newPlot(title string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, vg.Points(12)
	p.Title.Padding = vg.Points(8)
	p.BackgroundColor = color.White
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size, axis.Tick.Label.Font.Size = vg.Points(9), vg.Points(9)
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = muted, muted
		axis.Label.Padding = vg.Points(4)
	}
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Top, p.Legend.YOffs, p.Legend.Padding = true, vg.Points(22), vg.Points(3)
	p.X.Padding, p.Y.Padding = vg.Points(4), vg.Points(4)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faint, faint
	p.Add(grid)
	return p
}

// ticks marks 1, 2 and 5 of each power of ten.
func ticks(label func(float64) string) plot.TickerFunc {
	return func(least, most float64) (all []plot.Tick) {
		for power := math.Floor(math.Log10(least)); power <= math.Log10(most); power++ {
			for _, n := range []float64{1, 2, 5} {
				x := n * math.Pow(10, power)
				if x < least || x > most {
					continue
				}
				tick := plot.Tick{Value: x}
				if n == 1 || most/least < 100 {
					tick.Label = label(x)
				}
				all = append(all, tick)
			}
		}
		return all
	}
}

func seconds(s float64) string {
	switch {
	case s < 0.9995e-3:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case s < 0.9995:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}

func plain(f float64) string {
	if f >= 1000 {
		return fmt.Sprintf("%.3gk", f/1000)
	}
	return fmt.Sprintf("%.3g", f)
}

// A curve is the curve of one engine.
type curve struct {
	engine string
	points plotter.XYs
}

// A growing is a chart with curves over a number, the first figure of the tables.
type growing struct {
	file, title, table, x, y, axis string
	label                          func(float64) string
}

var curves = []growing{
	{"growth-turns", "What does a turn take when many wait for one name?", "Time per turn", "waiters", "a turn", "time of a turn", seconds},
	{"growth-idle", "What does a crowd cost that only waits?", "A crowd that waits", "waiters", "clients, cores", "cores of all clients", plain},
}

// drawCurves draws the charts of growing numbers. It omits pages that do not exist.
func drawCurves(from, to string) error {
	for _, g := range curves {
		t, err := find(from, "growth", g.table)
		if err != nil {
			return err
		}
		all, err := g.curves(&t)
		if err != nil {
			return err
		}
		p := newPlot(g.title)
		p.X.Label.Text, p.Y.Label.Text = g.x, g.axis
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = ticks(plain), ticks(g.label)
		for i, c := range all {
			line, marks, err := plotter.NewLinePoints(c.points)
			if err != nil {
				return err
			}
			line.Color, line.Width = palette[i%len(palette)], vg.Points(1.5)
			marks.Color, marks.Shape, marks.Radius = line.Color, shapes[i%len(shapes)], vg.Points(3)
			p.Add(line, marks)
		}
		names, err := plotter.NewLabels(atEnds(all, math.Log(p.Y.Max/p.Y.Min)))
		if err != nil {
			return err
		}
		for i := range names.TextStyle {
			names.TextStyle[i].Font.Size, names.TextStyle[i].Color, names.TextStyle[i].YAlign = vg.Points(8), palette[i%len(palette)], text.YCenter
		}
		names.Offset.X = vg.Points(6)
		p.Add(names)
		p.X.Max *= 2 // for names
		if err := p.Save(9*vg.Inch, 5*vg.Inch, filepath.Join(to, g.file+".svg")); err != nil {
			return err
		}
	}
	return nil
}

// atEnds returns a label for the last point of each curve. It moves labels up that would overlap on
// an axis of this length.
func atEnds(all []curve, axis float64) (labels plotter.XYLabels) {
	const letter = 1.0 / 28 // as a part of the axis
	labels = plotter.XYLabels{XYs: make(plotter.XYs, len(all)), Labels: make([]string, len(all))}
	order := make([]int, len(all))
	for i, c := range all {
		order[i], labels.XYs[i], labels.Labels[i] = i, c.points[len(c.points)-1], c.engine
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(labels.XYs[a].Y, labels.XYs[b].Y) })
	lowest := map[float64]float64{} // that is left, by x
	for _, i := range order {
		at := &labels.XYs[i]
		at.Y = max(at.Y, lowest[at.X])
		lowest[at.X] = at.Y * math.Exp(letter*axis)
	}
	return labels
}

func (g *growing) curves(t *table) ([]curve, error) {
	x, err := t.column(g.x)
	if err != nil {
		return nil, err
	}
	y, err := t.column(g.y)
	if err != nil {
		return nil, err
	}
	points := map[string]plotter.XYs{}
	for _, row := range t.rows {
		if y >= len(row) {
			continue
		}
		a, known := figure(row[x])
		b, measured := figure(row[y])
		if known && measured {
			points[row[0]] = append(points[row[0]], plotter.XY{X: a, Y: b})
		}
	}
	var all []curve
	for _, engine := range slices.Sorted(maps.Keys(points)) {
		all = append(all, curve{engine, points[engine]})
	}
	return all, nil
}

// palette has colors that people with color blindness can distinguish.
var palette = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.RGBA{0x00, 0x00, 0x00, 0xff},
}

var shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{}}
