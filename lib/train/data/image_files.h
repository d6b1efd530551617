/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists the images below a directory of classes, in the order of torchvision's ImageFolder. */
#ifndef BERTH_TRAIN_DATA_IMAGE_FILES_H
#define BERTH_TRAIN_DATA_IMAGE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

/* A growing list of names. */
struct imagefolder_names {
	char **list;
	size_t count, capacity;
};
void imagefolder_names_free(struct imagefolder_names *names);
/* List the classes: the names of directory's subdirectories, sorted as bytes (Python's order for
 * UTF-8). Return 0, -ERR_INPUT if the directory cannot be read, or -ERR_DATA if it has no
 * subdirectory. *out can be freed in any case. */
int imagefolder_classes(const char *directory, struct imagefolder_names *out, struct error *err);
int imagefolder_class_index(const struct imagefolder_names *classes, const char *name); /* or -1 */

struct imagefolder_file {
	size_t path; /* where its path below the directory begins in paths */
	int32_t label;
};
struct imagefolder_files {
	struct bytes paths; /* one after another, each with its NUL */
	struct imagefolder_file *list;
	size_t count, capacity;
	int64_t skipped_files; /* files that are not .jpg or .jpeg */
};
/* Add the .jpg and .jpeg files of directory/name and of all directories below it, in the order of
 * their paths; links are followed. Return 0, -ERR_INPUT if a directory cannot be read, or -ERR_DATA
 * if there is no such file or the directories form a loop. */
int imagefolder_add(struct imagefolder_files *files, const char *directory, const char *name,
		    int32_t label, struct error *err);
void imagefolder_files_free(struct imagefolder_files *files);

#endif
