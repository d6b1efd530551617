/* SPDX-License-Identifier: BSD-3-Clause */
/* berth report: how a job ended, as an HTML page; or how several ended, as a table. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"
#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "report/report.h"
#include "show.h"
#include "table.h"
#include "verb.h"

#define DOCUMENT_MAX ((size_t)64 << 20)

struct arguments {
	struct arguments_list documents;
	const char *output, *metrics;
};

static int check_arguments(void *input, struct error *err)
{
	const struct arguments *arguments = input;

	if (!arguments->documents.count)
		return error_set(
			err, ERR_USAGE,
			"no REPORT.json given: name the file of berth run --report, or the "
			"directory of --log-dir");
	if (arguments->documents.count > 1 && (arguments->output || arguments->metrics))
		return error_set(err, ERR_USAGE, "--%s: only one REPORT.json is possible",
				 arguments->output ? "output" : "metrics");
	return 0;
}

/* A directory stands for the report in it, or in its logs/. The result is malloced. */
static char *document_path(const char *name)
{
	struct stat status;
	char *path;

	if (stat(name, &status) || !S_ISDIR(status.st_mode))
		return strdup(name);
	if (asprintf(&path, "%s/logs/report.json", name) < 0)
		return NULL;
	if (!access(path, F_OK))
		return path;
	free(path);
	return asprintf(&path, "%s/report.json", name) < 0 ? NULL : path;
}

static int read_document(const char *path, json_t **out, struct error *err)
{
	char *text;
	size_t size;
	int rc = file_read(path, DOCUMENT_MAX, &text, &size, err);

	if (!rc) {
		rc = json_read(path, text, size, DOCUMENT_MAX, out, err);
		free(text);
	}
	return rc;
}

/* ---- several reports: a summary ---- */

enum outcome { GOOD, STOPPED, CANCELLED, FAILED, UNKNOWN, OUTCOME_COUNT };

struct run {
	const char *name;
	json_t *document; /* NULL: err is why, or there is none */
	struct error err;
	int64_t code;
	bool cancelled; /* according to the scheduler */
};

static void read_run(struct run *run)
{
	char *path = document_path(run->name);
	const char *kind;

	if (!path || read_document(path, &run->document, &run->err) ||
	    report_check(path, run->document, &run->err) ||
	    json_get_int("the report", run->document, "code", 0, 255, &run->code, &run->err)) {
		json_decref(run->document);
		run->document = NULL;
	}
	if (!path || access(path, F_OK))
		run->err.text[0] = '\0';
	free(path);
	kind = json_string_value(json_object_get(run->document, "kind"));
	run->cancelled = kind && !strcmp(kind, "cancelled");
}

static const char *argument(const struct run *run, size_t i)
{
	return json_string_value(json_array_get(json_object_get(run->document, "program"), i));
}

/* The arguments of a run that not all runs have, with the option before: "--lr 0.02". */
static void list_differences(const struct run *run, const struct run *runs, size_t count, char *out,
			     size_t size)
{
	const char *word, *other, *before = NULL; /* an option that all runs have */
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; used < size && (word = argument(run, i)); i++) {
		bool same = true;

		for (size_t k = 0; k < count; k++)
			if (argument(&runs[k], 0))
				same &= (other = argument(&runs[k], i)) && !strcmp(word, other);
		if (!same)
			used += (size_t)snprintf(out + used, size - used, "%s%s%s%s",
						 used ? " " : "", before ? before : "",
						 before ? " " : "", word);
		before = same && *word == '-' ? word : NULL;
	}
}

/* A line for one run. job_cancelled: with its job, so a run without a report was, too. */
static enum outcome summarize(const struct run *run, const char *differences, bool job_cancelled,
			      struct table *table)
{
	const char *cause = json_string_value(json_object_get(run->document, "first_cause"));
	struct cell code, time;
	double seconds = 0;
	const json_t *attempt;
	size_t i;

	if (!run->document) {
		job_cancelled &= !run->err.text[0];
		TABLE_ROW(table, run->name, "", "", "",
			  run->err.text[0] ? run->err.text
			  : job_cancelled  ? "cancelled"
					   : "no report: it still runs, or was killed");
		return job_cancelled ? CANCELLED : UNKNOWN;
	}
	json_array_foreach(json_object_get(run->document, "attempts"), i, attempt)
	{
		seconds += json_number_value(json_object_get(attempt, "run_seconds"));
	}
	if (run->cancelled || !cause)
		cause = run->cancelled ? "cancelled" : "ended";
	TABLE_ROW(table, run->name, differences, cell(&code, "%lld", (long long)run->code),
		  cell(&time, "%ld:%02ld", (long)seconds / 60, (long)seconds % 60), cause);
	if (!run->code || run->code == ERR_STOPPED)
		return run->code ? STOPPED : GOOD;
	return run->cancelled ? CANCELLED : FAILED;
}

static int print_summary(const struct arguments *arguments, struct error *err)
{
	static const char *const names[] = {"ended with code 0", "stopped with code 75",
					    "cancelled", "failed", "without a report"};
	struct table table = {0};
	struct paint paint;
	struct env *env = env_capture();
	size_t count = arguments->documents.count, counts[OUTCOME_COUNT] = {0}, shown = 0;
	struct run *runs = calloc(count, sizeof *runs);
	bool job_cancelled = false;
	char differences[64];

	if (!env || !runs)
		return error_memory(err, "the reports");
	paint_init(env, &paint);
	env_free(env);
	TABLE_ROW(&table, "run", "arguments", "code", "time", "end");
	for (size_t i = 0; i < count; i++) {
		runs[i].name = arguments->documents.items[i];
		read_run(&runs[i]);
		/* Without a signal only a job step was cancelled. */
		job_cancelled |= runs[i].cancelled &&
				 json_is_string(json_object_get(runs[i].document, "why"));
	}
	for (size_t i = 0; i < count; i++) {
		list_differences(&runs[i], runs, count, differences, sizeof differences);
		counts[summarize(&runs[i], differences, job_cancelled, &table)]++;
	}
	for (size_t i = 0; i < count; i++)
		json_decref(runs[i].document);
	free(runs);
	table_print(&table, &paint, 0);
	printf("%zu runs: ", count);
	for (int i = 0; i < OUTCOME_COUNT; i++)
		if (counts[i])
			printf("%s%zu %s", shown++ ? ", " : "", counts[i], names[i]);
	printf("\n");
	return 0;
}

/* ---- one report: a page ---- */

/* REPORT.html beside REPORT.json; malloced. */
static char *default_output(const char *document)
{
	size_t length = strlen(document);
	char *path;

	if (length > 5 && !strcmp(document + length - 5, ".json"))
		length -= 5;
	return asprintf(&path, "%.*s.html", (int)length, document) < 0 ? NULL : path;
}

static int write_page(const struct arguments *arguments, const char *document,
		      const struct bytes *page, struct error *err)
{
	char *path;
	int rc;

	if (arguments->output && !strcmp(arguments->output, "-")) {
		fwrite(page->data, 1, page->size, stdout);
		return 0;
	}
	path = arguments->output ? strdup(arguments->output) : default_output(document);
	rc = path ? file_write_atomic(path, page->data, page->size, 0666, err)
		  : error_memory(err, "the report");
	if (!rc)
		printf("%s\n", path);
	free(path);
	return rc;
}

static int make_page(const struct arguments *arguments, struct error *err)
{
	char *path = document_path(arguments->documents.items[0]), *rows = NULL;
	struct report_metrics metrics = {.name = arguments->metrics};
	struct bytes page = {0};
	JSON_AUTO document = NULL;
	int rc = path ? read_document(path, &document, err) : error_memory(err, "the report");

	if (!rc && metrics.name) {
		rc = file_read(metrics.name, DOCUMENT_MAX, &rows, &metrics.size, err);
		metrics.text = rows;
	}
	if (!rc)
		rc = report_html(path, document, rows ? &metrics : NULL, &page, err);
	if (!rc)
		rc = write_page(arguments, path, &page, err);
	bytes_free(&page);
	free(rows);
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
		.positional = {.type = ARGUMENTS_LIST},
		.check = check_arguments,
		.usage = "REPORT.json...",
		.doc = "Show how a job ended as one HTML page, or print how several ended as a "
		       "table."
		       "\vREPORT.json is the file of berth run --report, the directory of "
		       "--log-dir, or the directory above logs/. The page needs no network. "
		       "berth prints its path.",
	};
	struct arguments arguments = {0};
	struct error err = {0};
	int rc;

	arguments_parse(&command, argc, argv, &arguments);
	rc = arguments.documents.count > 1 ? print_summary(&arguments, &err)
					   : make_page(&arguments, &err);
	free(arguments.documents.items);
	return rc ? verb_fail(&err) : 0;
}
