/* SPDX-License-Identifier: BSD-3-Clause */
/* The curves of a training: metrics.jsonl as inline SVG. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/page.h"

#define LINE_MAX ((size_t)1 << 16)
#define POINTS 300 /* per curve; more are averaged */
#define WIDTH 600
#define HEIGHT 140

struct curve {
	const char *split, *key, *title;
	struct point {
		double step, value;
	} * points;
	size_t count, room;
};

static int add_point(struct curve *curve, double step, double value, struct error *err)
{
	if (!array_reserve(&curve->points, curve->count, &curve->room, sizeof *curve->points))
		return error_memory(err, "the curves");
	curve->points[curve->count++] = (struct point){step, value};
	return 0;
}

/* Average neighbours until there are at most POINTS. */
static void shorten(struct curve *curve)
{
	size_t group = (curve->count + POINTS - 1) / POINTS, count = 0;

	for (size_t i = 0; i < curve->count; count++) {
		size_t size = curve->count - i < group ? curve->count - i : group;
		double sum = 0;

		for (size_t n = 0; n < size; n++)
			sum += curve->points[i + n].value;
		i += size;
		curve->points[count] =
			(struct point){curve->points[i - 1].step, sum / (double)size};
	}
	curve->count = count;
}

static void draw(struct page *page, struct curve *curve)
{
	double low = INFINITY, high = -INFINITY, last = curve->points[curve->count - 1].value;
	double begin = curve->points[0].step, end = curve->points[curve->count - 1].step;

	for (size_t i = 0; i < curve->count; i++) {
		low = fmin(low, curve->points[i].value);
		high = fmax(high, curve->points[i].value);
	}
	shorten(curve);
	page_format(page,
		    "<figure><figcaption>%s: lowest %.6g, highest %.6g, last %.6g; steps %.0f to "
		    "%.0f</figcaption>\n",
		    curve->title, low, high, last, begin, end);
	/* The labels are outside the picture, so that a narrow page does not shrink them. */
	page_format(page, "<div class=\"y\"><span>%.3g</span><span>%.3g</span></div>", high, low);
	page_format(page,
		    "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" "
		    "aria-label=\"%s\"><polyline vector-effect=\"non-scaling-stroke\" ",
		    WIDTH, HEIGHT, curve->title);
	page_add(page, "fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" points=\"");
	for (size_t i = 0; i < curve->count; i++)
		page_format(page, "%.1f,%.1f ",
			    end > begin ? WIDTH * (curve->points[i].step - begin) / (end - begin)
					: WIDTH / 2.,
			    high > low ? 4 + (HEIGHT - 8) * (high - curve->points[i].value) /
							 (high - low)
				       : HEIGHT / 2.);
	page_format(page,
		    "\"/></svg><div class=\"x\"><span>%.0f</span><span>step</span><span>%.0f"
		    "</span></div></figure>\n",
		    begin, end);
}

/* Add the values of one line to the curves. */
static int read_line(const char *name, const char *line, size_t size, size_t number,
		     struct curve *curves, size_t count, struct error *err)
{
	JSON_AUTO row = NULL;
	const char *split;
	int rc = 0;

	if (json_read(name, line, size, LINE_MAX, &row, err))
		return error_set(err, ERR_DATA,
				 "%s: line %zu is not a JSON object of at most %zu bytes", name,
				 number, LINE_MAX);
	split = json_string_value(json_object_get(row, "split"));
	for (size_t i = 0; !rc && i < count; i++) {
		const json_t *step = json_object_get(row, "step"),
			     *value = json_object_get(row, curves[i].key);

		if (split && !strcmp(split, curves[i].split) && json_is_number(step) &&
		    json_is_number(value))
			rc = add_point(&curves[i], json_number_value(step),
				       json_number_value(value), err);
	}
	return rc;
}

int page_add_curves(struct page *page, const char *name, const char *text, size_t size,
		    struct error *err)
{
	struct curve curves[] = {
		{.split = "train", .key = "loss", .title = "Training loss"},
		{.split = "val", .key = "loss", .title = "Validation loss"},
		{.split = "val", .key = "acc1", .title = "Validation accuracy, percent"},
		{.split = "train", .key = "lr", .title = "Learning rate"},
		{.split = "train", .key = "images_per_s", .title = "Images per second"},
		{.split = "train", .key = "data_wait_ms", .title = "Waiting for data, ms"},
	};
	size_t count = sizeof curves / sizeof *curves, points = 0;
	int rc = 0;

	for (size_t at = 0, number = 1, end; !rc && at < size; at = end + 1, number++) {
		const char *newline = memchr(text + at, '\n', size - at);

		/* A run that was killed leaves its last line unfinished. */
		if (!newline)
			break;
		end = (size_t)(newline - text);
		rc = read_line(name, text + at, end - at, number, curves, count, err);
	}
	for (size_t i = 0; i < count; i++)
		points += curves[i].count;
	if (!rc && !points)
		rc = error_set(err, ERR_DATA, "%s has no values of berth train --metrics", name);
	if (!rc)
		page_add(page, "<h2>Training</h2>\n");
	for (size_t i = 0; i < count; i++) {
		if (!rc && curves[i].count)
			draw(page, &curves[i]);
		free(curves[i].points);
	}
	return rc;
}
