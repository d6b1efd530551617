/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/image_files.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/bytes.h"

#define MAX_DEPTH 32

void imagefolder_names_free(struct imagefolder_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->list[i]);
	free(names->list);
	*names = (struct imagefolder_names){0};
}

static int names_add(struct imagefolder_names *names, const char *name, struct error *err)
{
	if (!array_reserve(&names->list, names->count, &names->capacity, sizeof *names->list))
		return error_memory(err, "the list of files");
	names->list[names->count] = strdup(name);
	if (!names->list[names->count])
		return error_memory(err, "the list of files");
	names->count++;
	return 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(struct imagefolder_names *names)
{
	if (names->count)
		qsort(names->list, names->count, sizeof *names->list, compare);
}

static int join(const char *directory, const char *name, char out[PATH_MAX], struct error *err)
{
	if (snprintf(out, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
		return error_set(err, ERR_DATA, "%s/%s: the path is longer than %d bytes",
				 directory, name, PATH_MAX - 1);
	return 0;
}

/* What an entry is, with links followed. The type from readdir saves a stat per file. */
static bool is_directory(const char *path, unsigned char type)
{
	struct stat st;

	if (type == DT_DIR || type == DT_REG)
		return type == DT_DIR;
	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* List path's directories and files; either list may be NULL. */
static int list(const char *path, struct imagefolder_names *directories,
		struct imagefolder_names *files, struct error *err)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	char inner[PATH_MAX];
	int rc = 0;

	if (!dir)
		return error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));
	errno = 0;
	while (!rc && (entry = readdir(dir))) {
		struct imagefolder_names *to = files;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		rc = join(path, entry->d_name, inner, err);
		if (!rc && is_directory(inner, entry->d_type))
			to = directories;
		if (!rc && to)
			rc = names_add(to, entry->d_name, err);
		errno = 0;
	}
	if (!rc && errno)
		rc = error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));
	closedir(dir);
	return rc;
}

/* ---- classes ---- */

int imagefolder_classes(const char *directory, struct imagefolder_names *out, struct error *err)
{
	int rc = list(directory, out, NULL, err);

	if (!rc && (!out->count || out->count > INT_MAX))
		rc = error_set(err, ERR_DATA, "%s holds no directories: expected one per class",
			       directory);
	names_sort(out);
	return rc;
}

int imagefolder_class_index(const struct imagefolder_names *classes, const char *name)
{
	char **found =
		bsearch(&name, classes->list, classes->count, sizeof *classes->list, compare);

	return found ? (int)(found - classes->list) : -1;
}

/* ---- files ---- */

static int files_add(struct imagefolder_files *files, const char *inner, const char *name,
		     int32_t label, struct error *err)
{
	struct bytes *paths = &files->paths;
	const struct imagefolder_file file = {paths->size, label};

	if (!array_reserve(&files->list, files->count, &files->capacity, sizeof file) ||
	    bytes_add(paths, inner, strlen(inner)) || bytes_add(paths, "/", 1) ||
	    bytes_add(paths, name, strlen(name) + 1))
		return error_memory(err, "the list of files");
	files->list[files->count++] = file;
	return 0;
}

/* A directory and its ancestors, to detect cycles. */
struct above {
	const struct above *above;
	dev_t device;
	ino_t inode;
};

/* Add the paths below directory of inner and of all directories below it. */
static int walk(const char *directory, const char *inner, const struct above *above, int depth,
		struct imagefolder_names *out, struct error *err)
{
	char path[PATH_MAX]; /* at most MAX_DEPTH of them are on the stack */
	struct imagefolder_names directories = {0};
	struct stat st;
	int rc = join(directory, inner, path, err);

	if (!rc && stat(path, &st))
		rc = error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));
	for (const struct above *a = above; !rc && a; a = a->above)
		if (a->device == st.st_dev && a->inode == st.st_ino)
			rc = error_set(err, ERR_DATA,
				       "%s is a symbolic link to a directory that contains it; "
				       "remove the link",
				       path);
	if (!rc && depth > MAX_DEPTH)
		rc = error_set(err, ERR_DATA, "%s is more than %d directories deep", path,
			       MAX_DEPTH);
	if (!rc)
		rc = names_add(out, inner, err);
	if (!rc)
		rc = list(path, &directories, NULL, err);
	for (size_t i = 0; !rc && i < directories.count; i++) {
		const struct above here = {above, st.st_dev, st.st_ino};

		rc = join(inner, directories.list[i], path, err);
		if (!rc)
			rc = walk(directory, path, &here, depth + 1, out, err);
	}
	imagefolder_names_free(&directories);
	return rc;
}

static bool is_jpeg(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && (!strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg"));
}

static int add_directory(struct imagefolder_files *files, const char *directory, const char *inner,
			 int32_t label, struct error *err)
{
	char path[PATH_MAX];
	struct imagefolder_names names = {0};
	int rc = join(directory, inner, path, err);

	if (!rc)
		rc = list(path, NULL, &names, err);
	names_sort(&names);
	for (size_t i = 0; !rc && i < names.count; i++) {
		if (is_jpeg(names.list[i]))
			rc = files_add(files, inner, names.list[i], label, err);
		else
			files->skipped_files++;
	}
	imagefolder_names_free(&names);
	return rc;
}

int imagefolder_add(struct imagefolder_files *files, const char *directory, const char *name,
		    int32_t label, struct error *err)
{
	struct imagefolder_names directories = {0};
	size_t before = files->count;
	int rc = walk(directory, name, NULL, 0, &directories, err);

	names_sort(&directories);
	for (size_t i = 0; !rc && i < directories.count; i++)
		rc = add_directory(files, directory, directories.list[i], label, err);
	if (!rc && files->count == before)
		rc = error_set(err, ERR_DATA,
			       "%s/%s holds no .jpg or .jpeg file: add images of this class, or "
			       "remove the directory",
			       directory, name);
	imagefolder_names_free(&directories);
	return rc;
}

void imagefolder_files_free(struct imagefolder_files *files)
{
	bytes_free(&files->paths);
	free(files->list);
	*files = (struct imagefolder_files){0};
}
