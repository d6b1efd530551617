/* SPDX-License-Identifier: BSD-3-Clause */
/* A page is built from top to bottom in one buffer. A section is present only if the document has
 * data for it. Text of the ranks is hostile, so all text passes through page_text. */
#include "report/report.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "report/page.h"

#define ROWS_MAX 64	  /* ranks in the table; of a larger job, those that failed come first */
#define ATTEMPTS_MAX 1000 /* bars; the newest attempts */
#define TEXT_MAX 4096	  /* bytes of one string */
#define LINES_MAX 200	  /* of the failing rank's output */

static const char head[] =
	"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
	"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
	"<title>berth run report</title><style>\n"
	":root{color-scheme:light dark;--line:#ccd;--bar:#3a6ea5}\n"
	"@media(prefers-color-scheme:dark){:root{--line:#445;--bar:#7aa7d8}}\n"
	"body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem;"
	"overflow-wrap:anywhere}\n"
	"table{border-collapse:collapse;width:100%}"
	"th,td{text-align:left;padding:.2rem .5rem;border-bottom:1px solid var(--line);"
	"vertical-align:top}\n"
	"th{overflow-wrap:normal}pre{white-space:pre-wrap;border:1px solid "
	"var(--line);padding:.5rem}\n"
	"figure{margin:1rem 0}svg{width:100%;border:1px solid var(--line);color:var(--bar)}\n"
	".bar{display:block;height:.6rem;min-width:2px;background:var(--bar)}\n"
	"</style></head><body>\n";

void page_add(struct page *page, const char *html)
{
	if (!page->failed && bytes_add(page->out, html, strlen(html)))
		page->failed = true;
}

void page_format(struct page *page, const char *format, ...)
{
	char html[256];
	va_list args;

	va_start(args, format);
	vsnprintf(html, sizeof html, format, args);
	va_end(args);
	page_add(page, html);
}

void page_text(struct page *page, const char *text)
{
	size_t length = strnlen(text, TEXT_MAX);
	bool cut = text[length] != '\0';

	while (cut && length && ((unsigned char)text[length] & 0xc0) == 0x80)
		length--;
	for (size_t i = 0; i < length && !page->failed; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c == '<')
			page_add(page, "&lt;");
		else if (c == '>')
			page_add(page, "&gt;");
		else if (c == '&')
			page_add(page, "&amp;");
		else if (c == '"')
			page_add(page, "&quot;");
		else if ((c < ' ' && c != '\t') || c == 0x7f)
			page_add(page, "\xef\xbf\xbd");
		else if (bytes_add(page->out, &c, 1))
			page->failed = true;
	}
	if (cut)
		page_add(page, " &#8230;");
}

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static double number_of(const json_t *object, const char *key, double otherwise)
{
	const json_t *value = json_object_get(object, key);

	return json_is_number(value) ? json_number_value(value) : otherwise;
}

static void add_row(struct page *page, const char *title, const char *text)
{
	if (!text || !*text)
		return;
	page_format(page, "<tr><th scope=\"row\">%s</th><td>", title);
	page_text(page, text);
	page_add(page, "</td></tr>\n");
}

static void add_end(struct page *page, const char *name, const json_t *document)
{
	const json_t *known = json_object_get(document, "known");
	const json_t *exception = json_object_get(document, "exception");

	page_add(page, "<h1>berth run report</h1>\n<h2>How the job ended</h2>\n<table>\n");
	add_row(page, "Document", name);
	add_row(page, "Kind", text_of(document, "kind"));
	page_format(page, "<tr><th scope=\"row\">Exit code</th><td>%.0f</td></tr>\n",
		    number_of(document, "code", -1));
	if (number_of(document, "signal", 0) > 0)
		page_format(page, "<tr><th scope=\"row\">Signal</th><td>%.0f</td></tr>\n",
			    number_of(document, "signal", 0));
	add_row(page, "First cause", text_of(document, "first_cause"));
	add_row(page, "Why", text_of(document, "why"));
	add_row(page, "Exception", text_of(exception, "text"));
	if (text_of(exception, "file")) {
		page_add(page, "<tr><th scope=\"row\">Raised in</th><td>");
		page_text(page, text_of(exception, "file"));
		page_format(page, ", line %.0f</td></tr>\n", number_of(exception, "line", 0));
	}
	add_row(page, "Known failure", text_of(known, "cause"));
	add_row(page, "Fix", text_of(known, "fix"));
	add_row(page, "Saved", text_of(document, "saved"));
	add_row(page, "Next", text_of(document, "next"));
	add_row(page, "Not restarted", text_of(document, "not_restarted"));
	page_add(page, "</table>\n");
}

static void add_last_lines(struct page *page, const json_t *document)
{
	const json_t *lines = json_object_get(document, "last_lines");
	size_t count = json_array_size(lines);

	if (!count)
		return;
	page_add(page, "<h2>Last lines of the failing rank</h2>\n<p>");
	if (number_of(document, "rank", -1) >= 0)
		page_format(page, "Rank %.0f", number_of(document, "rank", -1));
	if (text_of(document, "node")) {
		page_add(page, " on node ");
		page_text(page, text_of(document, "node"));
	}
	page_add(page, "</p>\n<pre>");
	for (size_t i = count > LINES_MAX ? count - LINES_MAX : 0; i < count; i++) {
		const char *line = json_string_value(json_array_get(lines, i));

		page_text(page, line ? line : "");
		page_add(page, "\n");
	}
	page_add(page, "</pre>\n");
}

static void add_attempt(struct page *page, size_t number, const json_t *attempt, double longest)
{
	double seconds = number_of(attempt, "seconds", -1), steps = number_of(attempt, "steps", -1);
	const json_t *nodes = json_object_get(attempt, "nodes");
	const char *cause = text_of(attempt, "first_cause");

	page_format(page, "<tr><td>%.0f</td><td>%.0f</td><td>",
		    number_of(attempt, "attempt", (double)number),
		    json_is_array(nodes) ? (double)json_array_size(nodes)
					 : number_of(attempt, "nodes", 0));
	if (seconds >= 0)
		page_format(page, "%.1f<span class=\"bar\" style=\"width:%.0f%%\"></span>", seconds,
			    longest > 0 ? 100 * seconds / longest : 0);
	page_add(page, "</td><td>");
	if (steps >= 0)
		page_format(page, "%.0f", steps);
	page_add(page, "</td><td>");
	page_text(page, cause ? cause : "");
	page_add(page, "</td></tr>\n");
}

static void add_attempts(struct page *page, const json_t *document)
{
	const json_t *attempts = json_object_get(document, "attempts");
	size_t count = json_array_size(attempts);
	size_t first = count > ATTEMPTS_MAX ? count - ATTEMPTS_MAX : 0;
	double longest = 0;

	if (!count)
		return;
	for (size_t i = first; i < count; i++) {
		double seconds = number_of(json_array_get(attempts, i), "seconds", 0);

		longest = seconds > longest ? seconds : longest;
	}
	page_add(page, "<h2>Attempts</h2>\n<table><tr><th scope=\"col\">Attempt</th>"
		       "<th scope=\"col\">Nodes</th><th scope=\"col\">Seconds</th>"
		       "<th scope=\"col\">Steps</th><th scope=\"col\">First cause</th></tr>\n");
	for (size_t i = first; i < count; i++)
		add_attempt(page, i, json_array_get(attempts, i), longest);
	page_add(page, "</table>\n");
}

static bool has_failed(const json_t *rank)
{
	return (number_of(rank, "code", 0) != 0 || number_of(rank, "signal", 0) != 0) &&
	       !json_is_true(json_object_get(rank, "stopped"));
}

static void add_rank(struct page *page, const json_t *rank)
{
	double memory = number_of(rank, "peak_memory_bytes", -1);
	const char *node = text_of(rank, "node");

	page_format(page, "<tr><td>%.0f</td><td>", number_of(rank, "rank", -1));
	page_text(page, node ? node : "");
	page_format(page, "</td><td>%.0f</td><td>%.0f</td><td>", number_of(rank, "code", 0),
		    number_of(rank, "signal", 0));
	if (memory >= 0)
		page_format(page, "%.1f MiB", memory / (1 << 20));
	page_format(page, "</td><td>%s</td></tr>\n",
		    json_is_true(json_object_get(rank, "stopped")) ? "berth" : "itself");
}

static void add_ranks(struct page *page, const json_t *document)
{
	const json_t *ranks = json_object_get(document, "ranks");
	size_t count = json_array_size(ranks), failed = 0, shown = 0;

	if (!count)
		return;
	for (size_t i = 0; i < count; i++)
		failed += has_failed(json_array_get(ranks, i));
	page_format(page, "<h2>Ranks</h2>\n<p>%zu of %zu ranks failed by themselves.", failed,
		    count);
	if (count > ROWS_MAX)
		page_format(page, " The table shows %d, those that failed first.", ROWS_MAX);
	page_add(page, "</p>\n<table><tr><th scope=\"col\">Rank</th><th scope=\"col\">Node</th>"
		       "<th scope=\"col\">Code</th><th scope=\"col\">Signal</th>"
		       "<th scope=\"col\">Peak memory</th><th scope=\"col\">Ended by</th></tr>\n");
	for (int healthy = 0; healthy < 2; healthy++)
		for (size_t i = 0; i < count && shown < ROWS_MAX; i++)
			if (has_failed(json_array_get(ranks, i)) != healthy) {
				add_rank(page, json_array_get(ranks, i));
				shown++;
			}
	page_add(page, "</table>\n");
}

int report_check(const char *name, const json_t *document, struct error *err)
{
	const char *schema = text_of(document, "schema");

	if (schema && !strcmp(schema, "berth.run/1"))
		return 0;
	return error_set(
		err, ERR_DATA,
		"%s: the schema is '%.100s', not 'berth.run/1'; name a file that berth run "
		"--report wrote",
		name, schema ? schema : "");
}

int report_html(const char *name, const json_t *document, const struct report_metrics *metrics,
		struct bytes *out, struct error *err)
{
	struct page page = {.out = out};
	int rc = report_check(name, document, err);

	if (rc)
		return rc;
	page_add(&page, head);
	add_end(&page, name, document);
	add_last_lines(&page, document);
	add_attempts(&page, document);
	rc = metrics ? page_add_curves(&page, metrics->name, metrics->text, metrics->size, err) : 0;
	add_ranks(&page, document);
	page_add(&page, "</body></html>\n");
	return !rc && page.failed ? error_memory(err, "the report") : rc;
}
