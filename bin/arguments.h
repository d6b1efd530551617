/* SPDX-License-Identifier: BSD-3-Clause */
/* The command line, read by argp from tables: an option's row has its help text and the place of
 * its value. Errors look like all of berth's messages. */
#ifndef BERTH_BIN_ARGUMENTS_H
#define BERTH_BIN_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* How an option's value is read, and into which type. A value that does not fit is an error. */
enum arguments_type {
	ARGUMENTS_END,	 /* ends a table */
	ARGUMENTS_GROUP, /* not an option: the rows after it belong to this group of --help */
	ARGUMENTS_ALIAS, /* another name of the option before it */
	ARGUMENTS_FLAG,	 /* bool: becomes true; takes no value */
	ARGUMENTS_TEXT,	 /* const char *, borrowed from argv; may be empty unless expected is set */
	ARGUMENTS_INT,	 /* int from least to most */
	ARGUMENTS_INT64, /* int64_t from least to most */
	ARGUMENTS_DOUBLE, /* double from least to most */
	ARGUMENTS_TIME,	  /* int: milliseconds, from 1 s to 1 day */
	ARGUMENTS_CHOICE, /* an enum: the index of the word in arg ("auto|on|off"), from 0 */
	ARGUMENTS_BOOL,	  /* bool: true if the value is word number least of arg */
	ARGUMENTS_LIST,	  /* positional only; struct arguments_list: each is appended */
	ARGUMENTS_REST,	  /* char **: the rest of the command line, up to its NULL */
	ARGUMENTS_READ,	  /* read interprets it */
};

struct arguments_list {
	const char **items; /* malloced, of texts borrowed from argv */
	size_t count;
};

struct arguments_option {
	const char *name; /* without "--" */
	const char *arg;  /* the value's name in --help; NULL: the option takes none */
	const char *doc;
	enum arguments_type type;
	size_t offset; /* of the value, in the struct that the table fills */
	int64_t least, most;
	const char *expected; /* ARGUMENTS_TEXT: what was expected instead of an empty text */
	size_t given;	      /* the offset of a bool that becomes true with the option; 0: none */
	/* text is NULL if the option has no value; out points to the member at offset. Return 0, or
	 * a code and err. */
	int (*read)(const char *text, void *out, struct error *err);
	char letter;   /* the short option; 0: none */
	int group;     /* ARGUMENTS_GROUP */
	bool hidden;   /* not in --help */
	bool optional; /* ARGUMENTS_READ: the value may be left out, and follows a "=" */
};

struct arguments_table {
	const struct arguments_option *options;
	size_t offset; /* in the verb's struct: of the struct that the table fills */
	/* Called for each option of the table that was given; may be NULL. filled: that struct. */
	int (*given)(void *filled, const char *name, const char *text, struct error *err);
};

/* A program's or verb's command line. */
struct arguments_command {
	struct arguments_table tables[8];   /* up to one without options */
	struct arguments_option positional; /* for arguments that are not options. ARGUMENTS_REST:
					       PROGRAM, which is required, and its arguments */
	const char *usage, *doc;	    /* args_doc and doc of argp */
	bool from_file;			    /* PROGRAM may be "@FILE", see words_file.h */
	const char *unknown;		    /* what to do about an option that it lacks; or NULL */
	int (*check)(void *input, struct error *err); /* called last; may be NULL */
};

/* Read argv into input, the verb's struct. On an error the process exits with ERR_USAGE; after
 * --help and --version it exits with 0. While argp runs, stderr is captured, so functions that it
 * calls must not write there. */
void arguments_parse(const struct arguments_command *command, int argc, char **argv, void *input);

/* The file of the words that were read last, or NULL. */
const char *arguments_file(void);

/* As ARGUMENTS_TIME; name is the option, "--warn-before". */
int arguments_time(const char *name, const char *text, int *out_ms, struct error *err);

/* For verbs without positional arguments: report any as an error. */
int arguments_refuse(const char *text, void *out, struct error *err);
#define ARGUMENTS_NONE                                                                             \
	{                                                                                          \
		.type = ARGUMENTS_READ, .read = arguments_refuse                                   \
	}

#endif
