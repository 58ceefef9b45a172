// The providers, partners and datasets from which a job can be composed at this node.
import { get, segment } from "../api.js";

/** Loads the lists; descriptions and partners' datasets are loaded when they are needed. */
export async function loadCatalog(session) {
  const [{ providers }, { routes }, { datasets }] = await Promise.all([
    get("/api/v1/providers?limit=1000"),
    get("/api/v1/routes?limit=1000"),
    get("/api/v1/datasets?unregistered=false&limit=1000"),
  ]);
  return new Catalog(session.node, providers, routes, datasets);
}

class Catalog {
  #providers; // retired ones, too: tasks of a job from a file may use them
  #ownDatasets; // ids
  #descriptions = new Map(); // promises by component
  #fullProviders = new Map(); // promises by the provider's name
  #partnerDatasets = new Map(); // promises by node

  constructor(node, providers, routes, datasets) {
    const enabledRoutes = routes.filter((route) => route.enabled);
    this.node = node;
    this.nodes = [node, ...enabledRoutes.map((route) => route.node)];
    this.#providers = providers;
    this.#ownDatasets = datasets.map((dataset) => dataset.dataset_id);
  }

  /** The components for new tasks, as `{provider, version, name, providerName}`. */
  get components() {
    const inUse = this.#providers.filter((provider) => !provider.retired);
    return inUse.flatMap(({ name: provider, version, components, provider_name: providerName }) =>
      components.map((name) => ({ provider, version, name, providerName })),
    );
  }

  /**
   * The description of a component, with the JSON Schema of its parameters as `schema`.
   * Resolves with null if the component is not registered here.
   */
  async describe({ provider, version, name }) {
    const isProvider = (candidate) =>
      candidate.name === provider &&
      candidate.version === version &&
      candidate.components.includes(name);
    const registered = this.#providers.find(isProvider);
    if (!registered) return null;
    const key = `${provider} ${version} ${name}`;
    if (!this.#descriptions.has(key)) {
      this.#descriptions.set(key, this.#load(registered.provider_name, name));
    }
    return this.#descriptions.get(key);
  }

  /** The components for new tasks with their descriptions, by provider and name. */
  async library() {
    const described = this.components.map(async (component) => {
      const description = await this.#descriptionOf(component);
      return { ...component, description };
    });
    return Promise.all(described);
  }

  /** The description of a component without the schema of its parameters. */
  async #descriptionOf({ providerName, name }) {
    const provider = await this.#provider(providerName);
    return provider.components_description[name];
  }

  #provider(name) {
    if (!this.#fullProviders.has(name)) {
      this.#fullProviders.set(name, get(`/api/v1/providers/${segment(name)}`));
    }
    return this.#fullProviders.get(name);
  }

  async #load(providerName, name) {
    const path = `/api/v1/providers/${segment(providerName)}/components/${segment(name)}/parameters`;
    const [description, schema] = await Promise.all([
      this.#descriptionOf({ providerName, name }),
      get(path),
    ]);
    return { ...description, schema };
  }

  /** The ids of the datasets that a node offers: this one, or a partner with a contract. */
  async datasetsOf(node) {
    if (node === this.node) return this.#ownDatasets;
    if (!this.#partnerDatasets.has(node)) {
      this.#partnerDatasets.set(node, loadPartnerDatasets(node));
    }
    return this.#partnerDatasets.get(node);
  }
}

async function loadPartnerDatasets(node) {
  try {
    const { records } = await get(`/api/v1/partners/${segment(node)}/datasets`);
    return records.map((record) => record.dataset_id).filter(Boolean);
  } catch {
    return []; // no contract, or the partner does not respond: ids can be typed
  }
}
