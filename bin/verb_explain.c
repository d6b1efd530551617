/* SPDX-License-Identifier: BSD-3-Clause */
/* berth explain: known failures in a log. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "arguments.h"
#include "base/bytes.h"
#include "base/json.h"
#include "explain/explain.h"
#include "verb.h"

#define LINE_MAX_BYTES 16384 /* only the beginning of a longer line is examined */
#define DIRS_MAX 2	     /* the directory of --log-dir and its attempt-N */

struct arguments {
	struct arguments_list files;
	bool json;
};

/* Where a row was first seen, and how often. */
struct finding {
	size_t count, line;
	char *text;
};

static int check_arguments(void *input, struct error *err)
{
	const struct arguments *arguments = input;

	return arguments->files.count
		       ? 0
		       : error_set(err, ERR_USAGE, "no LOG given (- is standard input)");
}

static int match_line(struct finding *findings, const char *line, size_t number, bool *in_child,
		      struct error *err)
{
	const struct explain_row *row = explain_line(line, *in_child |= explain_is_child(line));
	const struct explain_row *rows;

	explain_rows(&rows);
	/* berth's last line repeats what its rank has printed, and another line names the cause. */
	if (row && row->of_other && !strncmp(line, "berth: ", 7))
		row = NULL;

	struct finding *finding = row ? &findings[row - rows] : NULL;

	if (!finding || finding->count++)
		return 0;
	finding->line = number;
	finding->text = strndup(line, 300);
	if (finding->text)
		text_replace_controls(finding->text, ' ', "\t");
	return finding->text ? 0 : error_memory(err, "a line");
}

/* Any bytes, lines of any length. */
static int read_log(FILE *file, const char *name, struct finding *findings, struct error *err)
{
	char *line = malloc(LINE_MAX_BYTES + 1);
	size_t used = 0, number = 1;
	bool in_child = false;
	int c, rc = line ? 0 : error_memory(err, "a line");

	while (!rc && (c = getc(file)) != EOF) {
		if (c == '\n') {
			line[used] = '\0';
			rc = match_line(findings, line, number++, &in_child, err);
			used = 0;
		} else if (used < LINE_MAX_BYTES) {
			line[used++] = (char)(c ? c : ' ');
		}
	}
	if (!rc && ferror(file))
		rc = error_set(err, ERR_INPUT, "cannot read %s: %s", name, strerror(errno));
	if (!rc && used) {
		line[used] = '\0';
		rc = match_line(findings, line, number, &in_child, err);
	}
	free(line);
	return rc;
}

static void print(const char *name, const struct finding *finding, const struct explain_row *row)
{
	printf("%s:%zu: %s%s", name, finding->line, finding->text, finding->count > 1 ? "" : "\n");
	if (finding->count > 1)
		printf(" (%zu times)\n", finding->count);
	printf("  cause:  %s\n  fix:    %s\n  source: %s\n", row->cause, row->fix, row->source);
}

/* One file. *known: failures found, added to. */
static int explain(const char *name, bool json, json_t *list, size_t *known, struct error *err)
{
	const struct explain_row *rows;
	size_t count = explain_rows(&rows);
	struct finding *findings = calloc(count + 1, sizeof *findings);
	FILE *file = strcmp(name, "-") ? fopen(name, "re") : stdin;
	int rc = 0;

	if (!findings)
		rc = error_memory(err, "the log");
	else if (!file)
		rc = error_set(err, ERR_INPUT, "cannot read %s: %s", name, strerror(errno));
	else
		rc = read_log(file, name, findings, err);
	for (size_t i = 0; !rc && i < count; i++) {
		if (!findings[i].count)
			continue;
		++*known;
		if (!json) {
			print(name, &findings[i], &rows[i]);
			continue;
		}
		json_t *entry = explain_row_json(&rows[i]);

		json_object_set_new(entry, "log", json_text(name));
		json_object_set_new(entry, "line", json_integer((json_int_t)findings[i].line));
		json_object_set_new(entry, "count", json_integer((json_int_t)findings[i].count));
		json_object_set_new(entry, "text", json_text(findings[i].text));
		json_array_append_new(list, entry);
	}
	for (size_t i = 0; findings && i < count; i++)
		free(findings[i].text);
	free(findings);
	if (file && file != stdin)
		fclose(file);
	return rc;
}

static int is_log(const struct dirent *entry)
{
	static const char *const ends[] = {".log", ".out", ".err"};
	const char *dot = strrchr(entry->d_name, '.');

	for (size_t i = 0; dot && dot != entry->d_name && i < sizeof ends / sizeof *ends; i++)
		if (!strcmp(dot, ends[i]))
			return 1;
	return 0;
}

static int is_visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* Print what happened first according to the report.json of --log-dir, if there is one. */
static void print_first_cause(const char *dir)
{
	JSON_AUTO report = NULL;
	const char *cause, *exception;
	char *path, *line;

	if (asprintf(&path, "%s/report.json", dir) < 0)
		return;
	json_read_file(path, (size_t)64 << 20, &report, NULL);
	cause = json_string_value(json_object_get(report, "first_cause"));
	exception =
		json_string_value(json_object_get(json_object_get(report, "exception"), "text"));
	if (cause && asprintf(&line, "%s: %s%s%s", path, cause, exception ? ": " : "",
			      exception ? exception : "") > 0) {
		text_replace_controls(line, ' ', "");
		puts(line);
		free(line);
	}
	free(path);
}

/* Explain the logs of a directory by name, then those of its subdirectories. Adds their number to
 * *logs. */
static int explain_dir(const char *dir, int depth, bool json, json_t *list, size_t *logs,
		       size_t *known, struct error *err)
{
	struct dirent **names = NULL;
	int count = scandir(dir, &names, is_visible, alphasort), rc = 0;

	if (count < 0)
		return error_set(err, ERR_INPUT, "cannot read %s: %s", dir, strerror(errno));
	if (!json)
		print_first_cause(dir);
	for (int dirs = 0; dirs < 2; dirs++)
		for (int i = 0; !rc && i < count; i++) {
			struct stat info;
			char *path = NULL;

			if (asprintf(&path, "%s/%s", dir, names[i]->d_name) < 0)
				rc = error_memory(err, "the directory");
			else if (stat(path, &info))
				rc = 0; /* it was removed, or is a dangling link */
			else if (!dirs && S_ISREG(info.st_mode) && is_log(names[i])) {
				rc = explain(path, json, list, known, err);
				++*logs;
			} else if (dirs && S_ISDIR(info.st_mode) && depth < DIRS_MAX) {
				rc = explain_dir(path, depth + 1, json, list, logs, known, err);
			}
			free(path);
		}
	for (int i = 0; i < count; i++)
		free(names[i]);
	free(names);
	return rc;
}

/* Explain a file, standard input, or a directory of logs. */
static int explain_any(const char *name, bool json, json_t *list, struct error *err)
{
	size_t logs = 0, known = 0;
	struct stat info;
	bool dir = !stat(name, &info) && S_ISDIR(info.st_mode);
	int rc = dir ? explain_dir(name, 1, json, list, &logs, &known, err)
		     : explain(name, json, list, &known, err);

	if (!rc && dir && !logs)
		return error_set(
			err, ERR_INPUT,
			"%s is a directory without *.log, *.out or *.err files; name the files",
			name);
	if (rc || known || json)
		return rc;
	if (dir)
		printf("%s: no known failure in %zu log%s\n", name, logs, logs == 1 ? "" : "s");
	else
		printf("%s: no known failure\n", name);
	return 0;
}

int verb_explain(int argc, char **argv)
{
	static const struct arguments_option options[] = {
		{"json", NULL, "Print JSON (berth.explain/1)", ARGUMENTS_FLAG,
		 offsetof(struct arguments, json)},
		{0},
	};
	static const struct arguments_command command = {
		.tables = {{options}},
		.positional = {.type = ARGUMENTS_LIST},
		.check = check_arguments,
		.usage = "LOG...",
		.doc = "Find known failures in the output of a job, with their causes and "
		       "fixes.\vLOG is a file, a directory of logs, or - for standard input. Exits "
		       "with code 0, whether berth knows a failure or not.",
	};
	struct arguments arguments = {0};
	struct error err = {0};
	json_t *list = json_array();
	int rc = list ? 0 : error_memory(&err, "the logs");

	arguments_parse(&command, argc, argv, &arguments);
	for (size_t i = 0; !rc && i < arguments.files.count; i++)
		rc = explain_any(arguments.files.items[i], arguments.json, list, &err);
	if (!rc && arguments.json) {
		JSON_AUTO root =
			json_pack("{s:s, s:O}", "schema", "berth.explain/1", "known", list);

		rc = json_print(root, stdout, &err);
	}
	json_decref(list);
	free(arguments.files.items);
	return rc ? verb_fail(&err) : 0;
}
