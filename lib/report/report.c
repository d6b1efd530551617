/* SPDX-License-Identifier: BSD-3-Clause */
/* berth puts the document into page.html, whose script draws it. In the data only '<' is escaped,
 * which could end them. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "page.h" /* generated: file_text, from page.html */

#define LINE_MAX ((size_t)1 << 16)

/* In JSON '<' occurs only in strings. "</script>" would end the data. */
static int add_json(const json_t *value, struct bytes *out, struct error *err)
{
	char *text = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
	int rc = text ? 0 : -1;

	for (const char *at = text; !rc && *at; at++)
		rc = *at == '<' ? bytes_add(out, "\\u003c", 6) : bytes_add(out, at, 1);
	free(text);
	return rc ? error_memory(err, "the report") : 0;
}

/* Copy the values that the curves show. */
static int read_row(const struct report_metrics *metrics, const char *line, size_t size,
		    size_t number, json_t *rows, struct error *err)
{
	static const char *const keys[] = {"loss", "acc1", "lr", "images_per_s", "data_wait_ms"};
	JSON_AUTO row = NULL;
	json_t *split, *step, *copy;

	if (json_read(metrics->name, line, size, LINE_MAX, &row, err))
		return error_set(err, ERR_DATA,
				 "%s: line %zu is not a JSON object of at most %zu bytes",
				 metrics->name, number, LINE_MAX);
	split = json_object_get(row, "split");
	step = json_object_get(row, "step");
	if (!json_is_string(split) || !json_is_number(step))
		return 0;
	copy = json_pack("{s:O, s:O}", "split", split, "step", step);
	for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
		if (json_is_number(json_object_get(row, keys[k])))
			json_object_set(copy, keys[k], json_object_get(row, keys[k]));
	if (json_object_size(copy) > 2)
		json_array_append(rows, copy);
	json_decref(copy);
	return 0;
}

static int read_rows(const struct report_metrics *metrics, json_t **out, struct error *err)
{
	json_t *rows = *out = json_array();
	const char *at = metrics->text, *end = at + metrics->size, *newline;
	int rc = 0;

	/* A run that was killed leaves its last line unfinished. */
	for (size_t number = 1; !rc && (newline = memchr(at, '\n', (size_t)(end - at))); number++) {
		rc = read_row(metrics, at, (size_t)(newline - at), number, rows, err);
		at = newline + 1;
	}
	return rc || json_array_size(rows)
		       ? rc
		       : error_set(err, ERR_DATA, "%s has no values of berth train --metrics",
				   metrics->name);
}

int report_check(const char *name, const json_t *document, struct error *err)
{
	const char *schema = json_string_value(json_object_get(document, "schema"));

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
	static const char *const places[] = {"id=\"report\">", "id=\"metrics\">"};
	JSON_AUTO rows = NULL;
	const char *at = file_text;
	int rc = report_check(name, document, err);

	if (!rc && metrics)
		rc = read_rows(metrics, &rows, err);
	for (int i = 0; !rc && i < 2; i++) {
		const char *place = strstr(at, places[i]) + strlen(places[i]);
		const json_t *value = i ? rows : document;

		if (bytes_add(out, at, (size_t)(place - at)))
			return error_memory(err, "the report");
		rc = add_json(value ? value : json_null(), out, err);
		at = place + strlen("null");
	}
	return rc || !bytes_add(out, at, strlen(at)) ? rc : error_memory(err, "the report");
}
