// The choice of versions in the sidebar, of a site that `./dev docs --web` has put beside those of other versions. The
// file versions.js above them all calls launcherkitVersions.
"use strict";

addEventListener("DOMContentLoaded", () => {
    const root = new URL(document.documentElement.dataset.content_root, location.href);

    // versions: an object of the pages of each version, the newest version first.
    window.launcherkitVersions = (versions) => {
        const page = location.pathname.slice(root.pathname.length);
        const choice = document.createElement("select");
        choice.className = "versions";
        choice.ariaLabel = "Version of this documentation";
        for (const [place, [version, pages]] of Object.entries(versions).entries()) {
            const address = new URL(`../${version}/${pages.includes(page) ? page : "index.html"}`, root);
            const here = root.pathname.endsWith(`/${version}/`);
            choice.add(new Option(place ? version : `${version} (newest)`, address.href, here, here));
        }
        choice.addEventListener("change", () => location.assign(choice.value));
        document.querySelector(".sidebar-brand").after(choice);
    };

    const list = document.createElement("script");
    list.src = new URL("../versions.js", root).href;
    document.head.append(list);
});
