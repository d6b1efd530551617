/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

struct search {
	const char *name, *symbol;
	int flags;
	char looked[640];  /* the directories that lack the file, for the message */
	char broken[320];  /* the first file that exists but does not load, and why */
	char foreign[256]; /* the first that loads but lacks the symbol */
	void *found;
};

/* Try DIRECTORY/SUFFIX/NAME.so. Return 1 if found, or -1 and memory is out; else 0. */
static int try_dir(struct search *search, const char *dir, size_t dir_size, const char *suffix)
{
	char *path;

	if (!dir_size)
		return 0;
	int n = asprintf(&path, "%.*s%s/%s.so", (int)dir_size, dir, suffix, search->name);

	if (n < 0)
		return -1;
	if (access(path, F_OK)) {
		text_append(search->looked, sizeof search->looked, "%s%.*s%s",
			    *search->looked ? ", " : "", (int)dir_size, dir, suffix);
	} else {
		void *module = dlopen(path, search->flags);

		search->found = module ? dlsym(module, search->symbol) : NULL;
		if (module && !search->found && !search->foreign[0]) {
			snprintf(search->foreign, sizeof search->foreign, "%s", path);
		} else if (!module && !search->broken[0]) {
			const char *why = dlerror();

			snprintf(search->broken, sizeof search->broken, "%s", why ? why : path);
		}
	}
	free(path);
	return search->found != NULL;
}

/* Try the directories in module.h's order. Returns as try_dir. */
static int try_all(struct search *search, const char *search_path)
{
	for (const char *p = search_path; p && *p;) {
		size_t size = strcspn(p, ":");
		int rc = try_dir(search, p, size, "");

		if (rc)
			return rc;
		p += size + (p[size] == ':');
	}

	/* An address in this code, which shows where it lies: in a program, or in libberth.so. */
	static const char here;
	static const char *const beside[] = {"/modules", "/berth", "/../lib/modules",
					     "/../" BERTH_LIBDIR "/berth"};
	Dl_info info;
	char *self = dladdr(&here, &info) && info.dli_fname ? realpath(info.dli_fname, NULL) : NULL;

	/* A program found in PATH may be named without a directory. */
	if (!self)
		self = realpath("/proc/self/exe", NULL);
	const char *slash = self ? strrchr(self, '/') : NULL;
	int rc = 0;

	for (size_t i = 0; slash && !rc && i < sizeof beside / sizeof *beside; i++)
		rc = try_dir(search, self, (size_t)(slash - self), beside[i]);
	free(self);
	return rc ? rc : try_dir(search, BERTH_MODULE_DIR, strlen(BERTH_MODULE_DIR), "");
}

int module_load(const char *name, const char *symbol, const char *search_path, int global,
		void **out, struct error *err)
{
	struct search search = {
		.name = name,
		.symbol = symbol,
		.flags = RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL),
	};
	int rc = try_all(&search, search_path);

	if (rc < 0)
		return error_memory(err, "a module's path");
	if (search.found) {
		*out = search.found;
		return 0;
	}
	if (search.broken[0])
		return error_set(err, ERR_UNAVAILABLE,
				 "module %s.so exists but cannot be loaded: %s; install the "
				 "library it needs, or add its directory to LD_LIBRARY_PATH",
				 name, search.broken);
	if (search.foreign[0])
		return error_set(err, ERR_UNAVAILABLE,
				 "%s has no %s: it belongs to another version of berth; install "
				 "the modules of this version",
				 search.foreign, symbol);
	return error_set(err, ERR_UNAVAILABLE,
			 "module %s.so is not installed (looked in %s); build berth with it, or "
			 "add its directory to BERTH_MODULE_PATH",
			 name, search.looked);
}

const char *symbols_find(void *library, const struct symbol *symbols, size_t count)
{
	const char *missing = NULL;

	for (size_t i = 0; i < count; i++) {
		void *symbol = dlsym(library, symbols[i].name);

		if (!symbol && symbols[i].needed && !missing)
			missing = symbols[i].name;
		memcpy(symbols[i].to, &symbol, sizeof symbol);
	}
	return missing;
}
