/* SPDX-License-Identifier: BSD-3-Clause */
/* berth report: how a job ended, as an HTML page. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "base/file.h"
#include "base/json.h"
#include "report/report.h"
#include "verb.h"

#define DOCUMENT_MAX ((size_t)64 << 20)

struct arguments {
	const char *document, *output, *metrics;
};

static int read_document_name(const char *text, void *out, struct error *err)
{
	struct arguments *arguments = out;

	if (arguments->document)
		return error_set(err, ERR_USAGE, "'%s': only one REPORT.json is possible", text);
	arguments->document = text;
	return 0;
}

static int check(void *input, struct error *err)
{
	const struct arguments *arguments = input;

	return arguments->document
		       ? 0
		       : error_set(err, ERR_USAGE,
				   "no REPORT.json given: name the file of berth run --report");
}

/* REPORT.html beside REPORT.json; malloced. */
static char *default_output(const char *document)
{
	size_t length = strlen(document);
	char *path;

	if (length > 5 && !strcmp(document + length - 5, ".json"))
		length -= 5;
	return asprintf(&path, "%.*s.html", (int)length, document) < 0 ? NULL : path;
}

static int write_page(const struct arguments *arguments, const struct bytes *page,
		      struct error *err)
{
	char *path;
	int rc;

	if (arguments->output && !strcmp(arguments->output, "-")) {
		if (fwrite(page->data, 1, page->size, stdout) == page->size && !fflush(stdout))
			return 0;
		return error_set(err, ERR_IO, "cannot write to standard output: %s",
				 strerror(errno));
	}
	path = arguments->output ? strdup(arguments->output) : default_output(arguments->document);
	rc = path ? file_write_atomic(path, page->data, page->size, 0666, err)
		  : error_memory(err, "the report");
	free(path);
	return rc;
}

int verb_report(int argc, char **argv)
{
	static const struct arguments_option options[] = {
		{"output", "FILE",
		 "Write the page to FILE; - is standard output (default: REPORT.html)",
		 ARGUMENTS_TEXT, offsetof(struct arguments, output), .expected = "a file name",
		 .letter = 'o'},
		{"metrics", "FILE", "Also draw the curves of this metrics.jsonl of berth train",
		 ARGUMENTS_TEXT, offsetof(struct arguments, metrics), .expected = "a file name"},
		{0},
	};
	static const struct arguments_command command = {
		.tables = {{options}},
		.positional = {.type = ARGUMENTS_READ, .read = read_document_name},
		.check = check,
		.usage = "REPORT.json",
		.doc = "Show how a job ended as one HTML page.\vREPORT.json is the file of berth "
		       "run --report. The page needs neither a network nor scripts.",
	};
	struct arguments arguments = {0};
	struct bytes page = {0};
	struct error err = {0};
	JSON_AUTO document = NULL;
	struct report_metrics metrics = {0};
	char *text = NULL, *rows = NULL;
	size_t size;
	int rc;

	arguments_parse(&command, argc, argv, &arguments);
	rc = file_read(arguments.document, DOCUMENT_MAX, &text, &size, &err);
	if (!rc)
		rc = json_read(arguments.document, text, size, DOCUMENT_MAX, &document, &err);
	free(text);
	if (!rc && arguments.metrics) {
		rc = file_read(arguments.metrics, DOCUMENT_MAX, &rows, &metrics.size, &err);
		metrics.name = arguments.metrics;
		metrics.text = rows;
	}
	if (!rc)
		rc = report_html(arguments.document, document, rows ? &metrics : NULL, &page, &err);
	if (!rc)
		rc = write_page(&arguments, &page, &err);
	bytes_free(&page);
	free(rows);
	return rc ? verb_fail(&err) : 0;
}
