/* SPDX-License-Identifier: BSD-3-Clause */
#include "arguments.h"
#include "base/log.h"

#include <argp.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/number.h"
#include "base/spelling.h"
#include "words_file.h"

#define OPTIONS_MAX 160 /* of a command, with groups */

/* getopt and argp print their own messages to stderr and end the process. glibc allows stderr to be
 * replaced, so their output is captured here until the process ends or the command line is read. */
static struct {
	FILE *people; /* the real stderr; NULL while nothing is captured */
	char *text;
	size_t size;
	const char *name; /* "berth run" */
	const struct arguments_command *command;
	char **argv; /* that is being read */
} capture;

static struct words_file file; /* @FILE; path NULL: there is none */

const char *arguments_file(void)
{
	return file.path;
}

static FILE *open_capture(void)
{
	FILE *mine = stderr;

	stderr = capture.people;
	capture.people = NULL;
	return mine;
}

/* Options of srun (with pyxis), mpirun, torchrun and accelerate, and what to use instead. */
static const struct {
	const char *name, *instead;
} foreign[] = {
	{"standalone", "Leave it out: without a scheduler, berth uses this machine"},
	{"rdzv-backend", "Leave it out: berth run is the rendezvous"},
	{"rdzv-id", "Leave it out: berth run is the rendezvous"},
	{"nproc", "Use -n N"},
	{"ntasks", "Use -n N"},
	{"num-processes", "Use -n N"},
	{"ntasks-per-node", "Use --ranks-per-node K"},
	{"ppn", "Use --ranks-per-node K"},
	{"num-machines", "Use --nodes N"},
	{"gpus-per-task", "Use --gpus-per-rank N"},
	{"module", "Use -- python -m MODULE"},
	{"map-by", "Leave it out: berth places ranks near their GPUs; see --dry-run"},
	{"bind-to", "Leave it out: berth binds ranks to cores"},
	{"cpu-bind", "Leave it out: berth binds ranks to cores"},
	{"mpi", "Leave it out: berth serves PMIx; see --pmix"},
	{"container-image", "Use --container IMAGE"},
	{"container-mounts", "Use --bind /PATH:/PATH"},
	{"container-per", "Leave it out: each rank has a container, and with --per-node each node"},
};

/* Append to text, an error, what to use instead of an option that the command does not have. */
static void add_advice(char *text, size_t size)
{
	const struct arguments_table *table = capture.command->tables;
	const char *names[OPTIONS_MAX] = {NULL}, *meant;
	char name[64];
	size_t count = 0;

	if (!strcmp(text, "invalid option -- 'm'"))
		text_append(text, size, ". Use -- python -m MODULE");
	if (!strcmp(text, "invalid option -- 'n'") && !strcmp(capture.name, "berth submit"))
		text_append(text, size, ". Use --ranks-per-node K");
	if (sscanf(text, "unrecognized option '--%63[^'=]", name) != 1)
		return;
	for (char *c = name; *c; c++)
		if (*c == '_') /* torchrun takes both */
			*c = '-';
	for (; table->options; table++)
		for (const struct arguments_option *option = table->options; option->type; option++)
			if (option->name && !option->hidden && count < OPTIONS_MAX)
				names[count++] = option->name;
	meant = spelling_closest(name, names, count);
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (!strcmp(foreign[i].name, name)) {
			text_append(text, size, ". %s", foreign[i].instead);
			return;
		}
	if (meant)
		text_append(text, size, ". Did you mean --%s?", meant);
	else if (capture.command->unknown)
		text_append(text, size, ". %s", capture.command->unknown);
}

/* A word of the command line that is wrong, or NULL, tells the line of the file. */
static void print_error(const char *text, const char *wrong, const char *name)
{
	char place[300] = "";

	for (size_t i = 0; i < file.count; i++)
		if (file.words[i] == wrong && file.lines[i])
			snprintf(place, sizeof place, "%.200s:%d: ", file.path, file.lines[i]);
	log_user(LOG_ERROR, "%s%s (%s --help lists the options)", place, text, name);
}

/* The word that getopt's message quotes. */
static const char *find_quoted(const char *text)
{
	for (char **word = capture.argv; word && *word; word++)
		for (const char *at = strchr(text, '\''); at; at = strchr(at + 1, '\''))
			if (**word == '-' && !strncmp(at + 1, *word, strcspn(*word, "=")))
				return *word;
	return NULL;
}

/* Runs at exit, when argp has ended the process. The first captured line describes the error and
 * begins with the program's name. */
static void print_captured(void)
{
	if (!capture.people)
		return;
	fclose(open_capture());

	const char *slash = strrchr(capture.name, '/'), *name = slash ? slash + 1 : capture.name;
	char *text = capture.text, *colon = text ? strstr(text, ": ") : NULL;

	/* getopt prints the program's path there, argp its name. */
	if (colon && colon >= text + strlen(name) &&
	    !memcmp(colon - strlen(name), name, strlen(name)))
		text = colon + 2;
	if (text && *text) {
		char line[1024];

		snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
		add_advice(line, sizeof line);
		print_error(line, find_quoted(line), name);
	}
	free(capture.text);
}

static void __attribute__((noreturn))
refuse(const struct argp_state *state, const struct error *err)
{
	if (capture.people) {
		fclose(open_capture());
		free(capture.text);
		capture.text = NULL;
	}
	print_error(err->text, state->next > 0 ? state->argv[state->next - 1] : NULL, state->name);
	exit(ERR_USAGE);
}

/* ---- values ---- */

int arguments_time(const char *name, const char *text, int *out_ms, struct error *err)
{
	int64_t ms;
	int rc = number_duration_ms(name, text, &ms, err);

	if (rc)
		return rc;
	if (ms < 1000 || ms > 86400000)
		return error_set(err, ERR_USAGE, "%s %.200s: expected a time from 1s to 1d", name,
				 text);
	*out_ms = (int)ms;
	return 0;
}

/* Which of the words "auto|on|off" is text? */
static int read_word(const char *name, const char *text, const char *words, int *out,
		     struct error *err)
{
	char expected[64] = "";
	size_t size;

	for (*out = 0;; ++*out, words += size + 1) {
		size = strcspn(words, "|");
		if (strlen(text) == size && !memcmp(text, words, size))
			return 0;
		text_append(expected, sizeof expected, "%s%.*s",
			    !*expected	  ? ""
			    : words[size] ? ", "
					  : " or ",
			    (int)size, words);
		if (!words[size])
			break;
	}
	return error_set(err, ERR_USAGE, "%s '%.200s': expected %s", name, text, expected);
}

static int read_value(const struct arguments_option *option, const char *text, char *filled,
		      struct error *err)
{
	void *out = filled + option->offset;
	char name[40];
	int word, rc;

	snprintf(name, sizeof name, "--%s", option->name);
	if (option->given)
		*(bool *)(filled + option->given) = true;
	switch (option->type) {
	case ARGUMENTS_FLAG:
		*(bool *)out = true;
		return 0;
	case ARGUMENTS_TEXT:
		if (option->expected && !*text)
			return error_set(err, ERR_USAGE, "%s is empty: expected %s", name,
					 option->expected);
		*(const char **)out = text;
		return 0;
	case ARGUMENTS_INT:
		if (option->letter == 'n' && !strcmp(text, "p"))
			return error_set(err, ERR_USAGE, "-np is mpirun's: use -n N or --np N");
		return number_int(name, text, (int)option->least, (int)option->most, out, err);
	case ARGUMENTS_INT64:
		return number_int64(name, text, option->least, option->most, out, err);
	case ARGUMENTS_DOUBLE:
		return number_double(name, text, (double)option->least, (double)option->most, out,
				     err);
	case ARGUMENTS_TIME:
		return arguments_time(name, text, out, err);
	case ARGUMENTS_CHOICE:
		return read_word(name, text, option->arg, out, err);
	case ARGUMENTS_BOOL:
		rc = read_word(name, text, option->arg, &word, err);
		*(bool *)out = word == option->least;
		return rc;
	default:
		return option->read(text, out, err);
	}
}

static int add_to_list(struct arguments_list *list, const char *text, struct error *err)
{
	const char **added = array_add(&list->items, &list->count, sizeof *added);

	if (!added)
		return error_memory(err, "the arguments");
	*added = text;
	return 0;
}

int arguments_refuse(const char *text, void *out, struct error *err)
{
	return error_set(err, ERR_USAGE, "unexpected argument '%s'", text);
}

/* ---- argp ---- */

#define KEY_FIRST 0x100 /* argp's key of the first row, unless it has a letter */

struct parse {
	const struct arguments_command *command;
	char *input;
	char **from_file; /* "@FILE" and what follows it; NULL: neither */
};

static int key_of(const struct arguments_option *option, int row)
{
	return option->letter ? option->letter : KEY_FIRST + row;
}

/* All tables as one of argp's, up to a zeroed row. Rows count from 0 through all tables. */
static void fill_options(const struct arguments_command *command, struct argp_option *out)
{
	const struct arguments_table *table = command->tables;
	int group = 0, row = 0;

	for (; table->options; table++)
		for (const struct arguments_option *option = table->options; option->type;
		     option++, row++) {
			assert(row < OPTIONS_MAX - 1);
			if (option->type == ARGUMENTS_GROUP)
				group = option->group;
			if (option->type == ARGUMENTS_GROUP && !option->doc)
				continue;
			*out++ = (struct argp_option){
				.name = option->name,
				.key = option->name && option->type != ARGUMENTS_ALIAS
					       ? key_of(option, row)
					       : 0,
				.arg = option->arg,
				.flags = (option->type == ARGUMENTS_ALIAS ? OPTION_ALIAS : 0) |
					 (option->hidden ? OPTION_HIDDEN : 0) |
					 (option->optional ? OPTION_ARG_OPTIONAL : 0),
				.doc = option->doc,
				.group = group,
			};
		}
	/* srun and torchrun have it, too; argp itself has --help and -?. */
	*out = (struct argp_option){.key = 'h', .flags = OPTION_HIDDEN};
}

/* Hide the rest of the command line, from argument first on, from argp. */
static void take_rest(struct argp_state *state, int first, void *out)
{
	*(char ***)out = &state->argv[first];
	state->next = state->argc;
}

static int parse_option(int key, const char *text, struct argp_state *state, struct error *err)
{
	const struct parse *parse = state->input;
	const struct arguments_table *table = parse->command->tables;
	int row = 0;

	for (; table->options; table++)
		for (const struct arguments_option *option = table->options; option->type;
		     option++, row++) {
			char *filled = parse->input + table->offset;

			if (!option->name || key_of(option, row) != key)
				continue;
			if (option->type == ARGUMENTS_REST)
				take_rest(state, state->next, filled + option->offset);
			else if (read_value(option, text, filled, err))
				return -err->code;
			return table->given ? table->given(filled, option->name, text, err) : 0;
		}
	return ARGP_ERR_UNKNOWN;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
	struct parse *parse = state->input;
	const struct arguments_command *command = parse->command;
	const struct arguments_option *positional = &command->positional;
	void *out = parse->input + positional->offset;
	bool takes_rest = positional->type == ARGUMENTS_REST;
	struct error err = {0};
	int rc = 0;

	if (key == ARGP_KEY_ARG && takes_rest && command->from_file && text[0] == '@' && text[1] &&
	    !state->quoted && !file.path) {
		take_rest(state, state->next - 1, &parse->from_file);
	} else if (key == ARGP_KEY_ARG && takes_rest) {
		take_rest(state, state->next - 1, out);
	} else if (key == ARGP_KEY_ARG && positional->type) {
		rc = positional->type == ARGUMENTS_LIST ? add_to_list(out, text, &err)
							: positional->read(text, out, &err);
	} else if (key == ARGP_KEY_END && !parse->from_file) {
		rc = command->check ? command->check(parse->input, &err) : 0;
		if (!rc && takes_rest && !*(char ***)out)
			rc = error_set(&err, ERR_USAGE, "no PROGRAM given");
	} else if (key == 'h') {
		argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
	} else {
		rc = parse_option(key, text, state, &err);
	}
	if (rc < 0)
		refuse(state, &err);
	return rc;
}

void arguments_parse(const struct arguments_command *command, int argc, char **argv, void *input)
{
	struct argp_option options[OPTIONS_MAX + 1] = {0};
	const struct argp argp = {options, parse, command->usage, command->doc, NULL, NULL, NULL};
	struct parse parsing = {command, input, NULL};
	unsigned flags = command->positional.type == ARGUMENTS_REST ? ARGP_IN_ORDER : 0;
	FILE *mine = open_memstream(&capture.text, &capture.size);
	struct error err = {0};

	fill_options(command, options);
	argp_err_exit_status = ERR_USAGE;
	/* If memory runs out, argp's own messages are good enough. */
	if (mine && !atexit(print_captured)) {
		capture.name = argv[0];
		capture.command = command;
		capture.people = stderr;
		stderr = mine;
	}
	capture.argv = argv;
	argp_parse(&argp, argc, argv, flags, NULL, &parsing);
	if (parsing.from_file) {
		if (words_file_read(argv[0], parsing.from_file, &file, &err)) {
			log_user(LOG_ERROR, "%s", err.text);
			exit(err.code);
		}
		parsing.from_file = NULL;
		capture.argv = file.words;
		argp_parse(&argp, (int)file.count, file.words, flags, NULL, &parsing);
	}
	if (capture.people)
		open_capture();
	if (mine)
		fclose(mine);
	free(capture.text);
	capture.text = NULL;
}
