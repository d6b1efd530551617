/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line, read by argp from tables: an option's row has its help text and the place of
 * its value. Errors are printed as all of berth's are. */
#ifndef BERTH_BIN_ARGUMENTS_H
#define BERTH_BIN_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* How an option's value is read, and into which type. A value that does not fit is refused. */
enum arguments_type {
	ARGUMENTS_END,	 /* ends a table */
	ARGUMENTS_GROUP, /* no option: the rows after it belong to this group of --help */
	ARGUMENTS_ALIAS, /* another name of the option before it */
	ARGUMENTS_FLAG,	 /* bool: becomes true; takes no value */
	ARGUMENTS_TEXT,	 /* const char *, borrowed from argv; may be empty unless expected is set */
	ARGUMENTS_INT,	 /* int from least to most */
	ARGUMENTS_INT64, /* int64_t from least to most */
	ARGUMENTS_DOUBLE, /* double from least to most */
	ARGUMENTS_TIME,	  /* int: milliseconds, from 1 s to 1 day */
	ARGUMENTS_CHOICE, /* an enum: which word of arg it is ("auto|on|off"), from 0 */
	ARGUMENTS_BOOL,	  /* bool: is it word number least of arg? */
	ARGUMENTS_REST,	  /* char **: all that follows on the command line, up to its NULL */
	ARGUMENTS_READ,	  /* read interprets it */
};

struct arguments_option {
	const char *name; /* without "--" */
	const char *arg;  /* the value's name in --help; NULL: the option takes none */
	const char *doc;
	enum arguments_type type;
	size_t offset; /* of the value, in the struct that the table fills */
	int64_t least, most;
	const char *expected; /* ARGUMENTS_TEXT: what an empty text should have been */
	size_t given;	      /* the offset of a bool that becomes true with the option; 0: none */
	/* text is NULL without a value; out is the place at offset. 0, or a code and err. */
	int (*read)(const char *text, void *out, struct error *err);
	char letter; /* the short option; 0: none */
	int group;   /* ARGUMENTS_GROUP */
	bool hidden; /* not in --help */
};

struct arguments_table {
	const struct arguments_option *options;
	size_t offset; /* in the verb's struct: of the struct that the table fills */
	/* Called for each option of the table that was given; may be NULL. filled: that struct. */
	int (*given)(void *filled, const char *name, const char *text, struct error *err);
};

/* A program's or verb's command line. */
struct arguments_command {
	struct arguments_table tables[4];   /* up to one without options */
	struct arguments_option positional; /* for what is no option. ARGUMENTS_REST: PROGRAM, which
					       is required, and its arguments */
	const char *usage, *doc;	    /* args_doc and doc of argp */
	int (*check)(void *input, struct error *err); /* last, when all is read; may be NULL */
};

/* Read argv into input, the verb's struct. An error ends the process with ERR_USAGE; --help and
 * --version end it with 0. While argp runs, stderr is kept back: functions that it calls write
 * nothing there. */
void arguments_parse(const struct arguments_command *command, int argc, char **argv, void *input);

/* As ARGUMENTS_TIME; name is the option, "--warn-before". */
int arguments_time(const char *name, const char *text, int *out_ms, struct error *err);

/* For the positional of a verb that takes none: refuses it. */
int arguments_refuse(const char *text, void *out, struct error *err);
#define ARGUMENTS_NONE                                                                             \
	{                                                                                          \
		.type = ARGUMENTS_READ, .read = arguments_refuse                                   \
	}

#endif
