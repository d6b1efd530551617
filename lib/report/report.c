/* SPDX-License-Identifier: BSD-3-Clause */
/* A page is built from top to bottom in one buffer. A section is present only if the document has
 * data for it. Text of the ranks is hostile, so all text passes through page_text. */
#include "report/report.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "report/page.h"

#define RANKS_MAX 256	  /* in the picture; of a larger job, those that failed come first */
#define ATTEMPTS_MAX 1000 /* the newest attempts */
#define TEXT_MAX 65536	  /* bytes of one string */
#define LINES_MAX 200	  /* of the failing rank's output */

static const char head[] =
	"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
	/* Nothing is loaded and no script runs, whatever a rank wrote. */
	"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
	"style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
	"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
	"<title>berth run report</title><style>\n"
	":root{color-scheme:light dark;--line:#ccd;--bar:#3a6ea5;--good:#0a6b3c;--bad:#b3261e}\n"
	"@media(prefers-color-scheme:dark){:root{--line:#445;--bar:#7aa7d8;--good:#5fd39a;"
	"--bad:#ff8f87}}\n"
	"body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem;"
	"overflow-wrap:anywhere}\n"
	"h1{font-size:1.4rem;border-left:.4rem solid;padding-left:.7rem}h2{font-size:1.1rem}"
	".good{color:var(--good)}.bad{color:var(--bad)}\n"
	"table{border-collapse:collapse;width:100%}"
	"th,td{text-align:left;padding:.2rem .5rem;border-bottom:1px solid var(--line);"
	"vertical-align:top}\n"
	"th{white-space:nowrap;width:7rem}pre{white-space:pre-wrap;border:1px solid "
	"var(--line);padding:.5rem}\n"
	".node{display:flex;flex-wrap:wrap;gap:.4rem;border:1px solid var(--line);"
	"padding:.4rem;margin:.4rem 0}.node>b{flex:0 0 100%}"
	".rank{border:2px solid;border-radius:.3rem;padding:0 .5rem}small{display:block}\n"
	"figure{margin:1rem 0;display:grid;grid-template-columns:5.5rem 1fr}"
	"figcaption{grid-column:1/3}.x,.y{display:flex;justify-content:space-between}"
	".x{grid-column:2}.y{flex-direction:column;text-align:right;padding-right:.4rem}\n"
	"svg{width:100%;height:9rem;border:1px solid var(--line);color:var(--bar)}\n"
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
		size_t whole = text_utf8_length(text + i), control = text_control_length(text + i);

		if (c == '<')
			page_add(page, "&lt;");
		else if (c == '>')
			page_add(page, "&gt;");
		else if (c == '&')
			page_add(page, "&amp;");
		else if (c == '"')
			page_add(page, "&quot;");
		else if (control && c != '\t' && c != '\n')
			page_add(page, "\xef\xbf\xbd");
		else if (bytes_add(page->out, text + i, whole ? whole : 1))
			page->failed = true;
		i += whole ? whole - 1 : 0;
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

/* Of a rank, of an entry of roles, or of the first cause; "" without roles. */
static const char *role_of(const json_t *object)
{
	const char *role = text_of(object, "role");

	return role ? role : "";
}

/* What became of the run, in one line: of an exception also where. */
static void add_headline(struct page *page, const json_t *document)
{
	const json_t *exception = json_object_get(document, "exception");
	const char *text = text_of(exception, "text"), *file = text_of(exception, "file");
	const char *cause = text_of(document, "first_cause"), *node = text_of(document, "node");
	double code = number_of(document, "code", -1);
	bool good = code == 0 || code == ERR_STOPPED;

	page_format(page, "<h1 class=\"%s\">%s", good ? "good" : "bad",
		    code == 0 ? "Finished"
		    : good    ? "Stopped: "
			      : "Failed: ");
	if (code != 0)
		page_text(page, text ? text : cause ? cause : "cause unknown");
	if (code != 0 && text && file) {
		page_add(page, " (");
		page_text(page, strrchr(file, '/') ? strrchr(file, '/') + 1 : file);
		page_format(page, ":%.0f)", number_of(exception, "line", 0));
	}
	if (code != 0 && text && node && number_of(document, "rank", -1) >= 0) {
		const json_t *roles = json_object_get(document, "roles"), *one;
		double world_size = (double)json_array_size(json_object_get(document, "ranks"));
		size_t i;

		json_array_foreach(roles, i, one)
		{
			if (role_of(one)[0] && !strcmp(role_of(one), role_of(document)))
				world_size = number_of(one, "world_size", 0);
		}
		page_format(page, ", rank %.0f of %.0f", number_of(document, "rank", -1),
			    world_size);
		page_add(page, role_of(document)[0] ? " of role " : "");
		page_text(page, role_of(document));
		page_add(page, " on ");
		page_text(page, node);
	}
	page_add(page, "</h1>\n");
}

/* of: the document, or an entry of roles, which has a program if there are several. */
static void add_command(struct page *page, const json_t *of)
{
	const json_t *program = json_object_get(of, "program"), *word;
	size_t i;

	if (!json_array_size(program))
		return;
	page_add(page, "<tr><th scope=\"row\">Command");
	page_add(page, role_of(of)[0] ? " of " : "");
	page_text(page, role_of(of));
	page_add(page, "</th><td><code>");
	json_array_foreach(program, i, word)
	{
		page_add(page, i ? " " : "");
		page_text(page, json_is_string(word) ? json_string_value(word) : "");
	}
	page_add(page, "</code></td></tr>\n");
}

/* When the run began and how long it took. Of a run that was restarted also each attempt. */
static void add_attempts(struct page *page, const json_t *attempts)
{
	size_t count = json_array_size(attempts), i;
	time_t started =
		json_integer_value(json_object_get(json_array_get(attempts, 0), "started"));
	double seconds = 0;
	const json_t *attempt;
	char text[40];
	struct tm tm;

	json_array_foreach(attempts, i, attempt)
	{
		seconds += number_of(attempt, "seconds", 0);
	}
	if (started > 0 && gmtime_r(&started, &tm) &&
	    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &tm))
		add_row(page, "Started", text);
	if (count && seconds >= 0 && seconds < 1e11) {
		snprintf(text, sizeof text, "%ld:%02ld:%02ld", (long)seconds / 3600,
			 (long)seconds / 60 % 60, (long)seconds % 60);
		add_row(page, "Duration", text);
	}
	for (i = count > ATTEMPTS_MAX ? count - ATTEMPTS_MAX : 0; count > 1 && i < count; i++) {
		attempt = json_array_get(attempts, i);
		snprintf(text, sizeof text, "Attempt %zu, %.0f s", i,
			 number_of(attempt, "seconds", 0));
		add_row(page, text, text_of(attempt, "first_cause"));
	}
}

static void add_facts(struct page *page, const json_t *document)
{
	const json_t *known = json_object_get(document, "known"), *role,
		     *roles = json_object_get(document, "roles");
	const char *next = text_of(document, "next");
	char code[32];
	size_t i;

	page_add(page, "<table>\n");
	json_array_foreach(roles, i, role)
	{
		add_command(page, role);
		add_row(page, "Its container",
			text_of(json_object_get(role, "container"), "image"));
	}
	if (!json_object_get(json_array_get(roles, 0), "program"))
		add_command(page, document);
	add_row(page, "Container", text_of(json_object_get(document, "container"), "image"));
	add_attempts(page, json_object_get(document, "attempts"));
	add_row(page, "berth", text_of(document, "version"));
	snprintf(code, sizeof code, "%.0f", number_of(document, "code", -1));
	add_row(page, "Exit code", code);
	if (json_is_object(json_object_get(document, "exception")))
		add_row(page, "First cause", text_of(document, "first_cause"));
	add_row(page, "Why", text_of(document, "why"));
	add_row(page, "Known failure", text_of(known, "cause"));
	add_row(page, "Fix", text_of(known, "fix"));
	add_row(page, "Saved", text_of(document, "saved"));
	if (next && strncmp(next, "see ", 4) != 0) /* the page shows what "see" refers to */
		add_row(page, "Next", next);
	add_row(page, "Not restarted", text_of(document, "not_restarted"));
	page_add(page, "</table>\n");
}

static void add_stacks(struct page *page, const char *stacks)
{
	if (!stacks)
		return;
	page_add(page, "<h2>Stacks of ranks that hung</h2>\n<pre>");
	page_text(page, stacks);
	page_add(page, "</pre>\n");
}

static void add_last_lines(struct page *page, const json_t *document)
{
	const json_t *lines = json_object_get(document, "last_lines");
	size_t count = json_array_size(lines);

	if (!count)
		return;
	page_add(page, "<h2>Last lines of output</h2>\n<pre>");
	for (size_t i = count > LINES_MAX ? count - LINES_MAX : 0; i < count; i++) {
		const char *line = json_string_value(json_array_get(lines, i));

		page_text(page, line ? line : "");
		page_add(page, "\n");
	}
	page_add(page, "</pre>\n");
}

static bool has_failed(const json_t *rank)
{
	return (number_of(rank, "code", 0) != 0 || number_of(rank, "signal", 0) != 0) &&
	       !json_is_true(json_object_get(rank, "stopped"));
}

static int by_role_and_number(const void *a, const void *b)
{
	double one = number_of(*(json_t *const *)a, "rank", -1);
	double other = number_of(*(json_t *const *)b, "rank", -1);
	int role = strcmp(role_of(*(json_t *const *)a), role_of(*(json_t *const *)b));

	return role ? role : (one > other) - (one < other);
}

static void add_rank(struct page *page, const json_t *rank)
{
	double memory = number_of(rank, "peak_memory_bytes", -1);
	bool stopped = json_is_true(json_object_get(rank, "stopped"));

	page_format(page, "<span class=\"rank %s\">Rank %.0f<small>",
		    has_failed(rank) ? "bad"
		    : stopped	     ? ""
				     : "good",
		    number_of(rank, "rank", -1));
	if (stopped)
		page_add(page, "stopped by berth");
	else if (number_of(rank, "signal", 0) > 0)
		page_format(page, "signal %.0f", number_of(rank, "signal", 0));
	else
		page_format(page, "code %.0f", number_of(rank, "code", 0));
	if (memory >= 0)
		page_format(page, ", %.0f MiB", memory / (1 << 20));
	page_add(page, "</small></span>\n");
}

/* One box per node with its ranks. */
static void add_ranks(struct page *page, const json_t *ranks)
{
	size_t count = json_array_size(ranks), failed = 0, room[2];
	json_t **sorted = calloc(count + 1, sizeof *sorted);
	const char *last = NULL, *role = "";

	page->failed |= !sorted;
	for (size_t i = 0; sorted && i < count; i++) {
		sorted[i] = json_array_get(ranks, i);
		failed += has_failed(sorted[i]);
	}
	if (!sorted || !count) {
		free(sorted);
		return;
	}
	qsort(sorted, count, sizeof *sorted, by_role_and_number);
	page_format(page, "<h2>Ranks by node</h2>\n<p>");
	if (failed)
		page_format(page, "%zu of %zu ranks failed by themselves.", failed, count);
	if (count > RANKS_MAX)
		page_format(page, " The picture shows %d, those that failed first.", RANKS_MAX);
	page_add(page, "</p>\n");
	room[true] = failed < RANKS_MAX ? failed : RANKS_MAX;
	room[false] = RANKS_MAX - room[true];
	for (size_t i = 0; i < count; i++) {
		const char *node = text_of(sorted[i], "node");
		const char *network = text_of(sorted[i], "network");

		if (!room[has_failed(sorted[i])])
			continue;
		room[has_failed(sorted[i])]--;
		node = node ? node : "";
		if (!last || strcmp(node, last) != 0 || strcmp(role_of(sorted[i]), role) != 0) {
			role = role_of(sorted[i]);
			page_add(page, last ? "</div>\n<div class=\"node\"><b>"
					    : "<div class=\"node\"><b>");
			page_text(page, role);
			page_add(page, *role ? " on " : "");
			page_text(page, node);
			page_add(page, network ? ", network " : "");
			page_text(page, network ? network : "");
			page_add(page, "</b>\n");
		}
		last = node;
		add_rank(page, sorted[i]);
	}
	page_add(page, "</div>\n");
	free(sorted);
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
	add_headline(&page, document);
	add_facts(&page, document);
	add_ranks(&page, json_object_get(document, "ranks"));
	rc = metrics ? page_add_curves(&page, metrics->name, metrics->text, metrics->size, err) : 0;
	add_stacks(&page, text_of(document, "stacks"));
	add_last_lines(&page, document);
	page_add(&page, "</body></html>\n");
	return !rc && page.failed ? error_memory(err, "the report") : rc;
}
